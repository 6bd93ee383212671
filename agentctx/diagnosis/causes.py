"""The causes that diagnosis can name: one stable code each, with what a reader needs to act on it.

The pages under ``docs/findings`` are made from this registry (``agentctx.diagnosis.pages``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Blame = Literal["client", "template", "tokenizer", "server", "time", "several", "unknown"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a prefix broke. ``word`` is the cause in snake case, ``name`` the same with hyphens.

    ``blame`` is who changed something. ``remedy`` is one line; the three texts make the cause's page.
    """

    code: str
    word: str
    title: str
    blame: Blame
    remedy: str
    looks_like: str
    why: str
    fix: str

    @property
    def name(self) -> str:
        return self.word.replace("_", "-")


_ALL = (
    Cause(
        "AC101",
        "volatile_text",
        "Volatile text in front of the history",
        "client",
        "put the volatile text in the newest message (History.note), not in front of what was already sent",
        "A clock, a date, a working directory, a git status, a battery level or a budget stands in the system "
        "prompt or in an old message, and reads differently in every request.",
        "A prefix cache compares from the start. At the first changed character reuse ends, and everything behind "
        "it is computed again, however little was changed: one digit in the system prompt costs the whole "
        "conversation, on every turn.",
        "Keep the system prompt constant for the whole conversation. Give the model volatile facts at the end, "
        "in the newest user message or tool result, and leave them there: once sent, they are history.",
    ),
    Cause(
        "AC102",
        "random_value",
        "A random value in front of the history",
        "client",
        "drop the random value, or make it once per conversation",
        "A request id, a nonce, a session tag or a UUID stands in the system prompt, in a tool description or in "
        "an old message, and is drawn anew for every request.",
        "To a prefix cache a new random value is a new prompt: all that stands behind it is computed again.",
        "Send identifiers in headers or metadata, which are not part of the prompt. If the model has to see one, "
        "draw it once when the conversation starts.",
    ),
    Cause(
        "AC103",
        "tool_order",
        "The same tools in another order",
        "client",
        "sort the tools once (source, server, name) and keep that order",
        "The request declares the same set of tools, listed in another order: a dictionary or set is iterated, "
        "tool servers answer in another sequence, or a restart registers them anew.",
        "Tool definitions stand at the head of the prompt. A swapped pair ends reuse there, before the system "
        "prompt or the first message.",
        "Sort by a stable key when the conversation starts and never sort again: agentctx orders by source class, "
        "server and name, whatever order the tools arrive in.",
    ),
    Cause(
        "AC104",
        "tool_added",
        "A tool was added",
        "client",
        "declare every tool at the start, or reveal late tools in messages (deferred tools)",
        "A tool appears in the middle of a conversation: a tool search revealed it, a server connected late, or a "
        "mode was switched.",
        "The declarations stand before the messages, so a new one moves all of them: the whole conversation is "
        "computed again.",
        "Declare the full set from the first request on. If there are too many, declare one tool that finds and "
        "calls the others, and describe them in its results.",
    ),
    Cause(
        "AC105",
        "tool_removed",
        "A tool was taken away",
        "client",
        "keep the declaration and refuse the call, or forbid it with tool_choice",
        "A tool that earlier requests declared is missing: a server disconnected, a mode was left, or a closing "
        "call offers one tool only.",
        "What is left moves forward, so reuse ends at the first declaration that moved, before every message.",
        "Keep declaring the tool. Answer a call to it with an error, or limit the choice with `tool_choice` where "
        "the server keeps that out of the prompt.",
    ),
    Cause(
        "AC106",
        "tool_schema_changed",
        "A tool's declaration was changed",
        "client",
        "freeze descriptions and schemas for the conversation; move lists that change into messages",
        "Name and order of the tools are equal, but a description or schema says something else: an enum gained a "
        "value, a default or a description was edited.",
        "The declaration stands before all messages; a changed character in it ends reuse there.",
        "Build declarations once per conversation. What changes (names of sub-agents, open files) belongs in a "
        "message, with a plain string in the schema.",
    ),
    Cause(
        "AC107",
        "json_key_order",
        "Equal JSON with its keys in another order",
        "client",
        "serialise once and keep the bytes, or use a mapping with a fixed order",
        "A schema, the arguments of a call or a JSON result mean the same, but their keys (or the names in "
        "`required`) come out in another order.",
        "A server that renders JSON as it was sent gives the model other text, hence other tokens, from the first "
        "swapped key on. A server that parses and sorts the schema first doesn't notice: the verdict depends on it.",
        "Keep the bytes of the first serialisation. Languages whose maps have no order (Go, Swift) need a sorted "
        "or an insertion-ordered map.",
    ),
    Cause(
        "AC108",
        "argument_serialisation",
        "Arguments of a call were written anew",
        "client",
        "store the argument string that the model produced and send it back unchanged",
        "The arguments of an old tool call parse to the same values, but the text differs: spaces after colons, "
        "ASCII escapes, number formats, a second layer of quotes.",
        "The model generated certain tokens and the server cached those. A string that was parsed and dumped again "
        "is other text from the first different character on.",
        "Never parse and dump arguments of calls that go back into the history. Parse a copy to run the tool.",
    ),
    Cause(
        "AC109",
        "id_regenerated",
        "Identifiers of calls were made anew",
        "client",
        "keep the identifiers that the first response gave",
        "Calls and results still match each other, but their identifiers differ from the ones sent before: they "
        "are drawn when the request is built.",
        "Where the template or provider puts identifiers into the prompt, reuse ends at the first call. Where it "
        "doesn't, nothing is lost: the verdict depends on the target.",
        "Store a call's identifier with the call. If the provider gave none, derive one from position and content.",
    ),
    Cause(
        "AC110",
        "message_edited",
        "An earlier message was edited",
        "client",
        "append a correction instead of changing what was sent",
        "A message that an earlier request carried, or the reply that the server returned, now reads differently, "
        "or lost or gained a part.",
        "Reuse ends inside that message; it and all behind it are computed again.",
        "Treat sent messages as frozen. Attach reminders to the newest message and leave them where they are; "
        "correct earlier content by a new message.",
    ),
    Cause(
        "AC111",
        "message_inserted",
        "A message was slipped in before earlier ones",
        "client",
        "append the message at the end, and leave it where it was sent",
        "A message stands in front of messages that were already sent; often a note that is placed before the "
        "newest exchange and wanders on.",
        "Everything behind the new message moves, so it is computed again although its text is equal.",
        "Append, also notes of the turn. Where a note has to stand near the newest message, put it into that "
        "message and keep it there.",
    ),
    Cause(
        "AC112",
        "message_removed",
        "An earlier message is missing",
        "client",
        "keep what was sent; rebuild a resumed history from the recorded requests",
        "A message that earlier requests carried is gone while those behind it are still sent: a restart rebuilt "
        "the history without an attachment, or a filter dropped a message.",
        "Everything behind the gap moves forward and is computed again.",
        "Store the history as it was sent, not as it can be derived, and resume from that.",
    ),
    Cause(
        "AC113",
        "history_trimmed",
        "The oldest messages were dropped",
        "client",
        "trim rarely and much (half of the budget at once), not a little on every turn",
        "The request keeps the newest messages and leaves out the oldest: a window of the last N messages, or "
        "pairs of calls and results cut to a budget.",
        "A sliding window moves every message on every turn: after the system prompt nothing is ever reused. One "
        "large cut costs the rest once and then gives many cheap turns.",
        "Let the history grow to the limit, then cut it to about half. Or keep it append-only and summarise once.",
    ),
    Cause(
        "AC114",
        "compaction",
        "History was compacted",
        "client",
        "compact rarely, clear many results in one pass, and let the summary request extend the same prefix",
        "A summary takes the place of many messages, or old tool results were replaced by a short stub.",
        "Everything behind the first replaced message is computed once more. A planned compaction pays for itself "
        "with shorter prompts; one that happens on every turn never does.",
        "Clear in batches: protect the newest results, and act only when the tokens that can go outweigh the ones "
        "that have to be computed again. Record the compaction as an event, so that reports know it was planned.",
    ),
    Cause(
        "AC115",
        "reasoning_removed",
        "Earlier reasoning was left out",
        "client",
        "send reasoning back as it came, with its signature or encrypted content",
        "Reasoning items, thinking blocks or a `reasoning_content` field that the server returned are missing when "
        "the history is sent back, or kept on the newest reply only.",
        "The cached prompt holds the reasoning; without it reuse ends where it stood. Inside a tool loop that is "
        "on every turn.",
        "Return reasoning items unchanged. Where a provider drops old reasoning itself (and says so), name it as "
        "the target: then its removal counts as no break.",
    ),
    Cause(
        "AC116",
        "whitespace",
        "White space was changed",
        "client",
        "store text exactly as received; strip only for display",
        "An earlier message differs in spaces or line breaks only: a reply was stripped, line ends were converted, "
        "a trailing blank was added.",
        "Tokens carry white space, so reuse ends there, unless the chat template trims the text anyway: the "
        "verdict depends on the target.",
        "Don't strip what goes back into the history.",
    ),
    Cause(
        "AC117",
        "content_shape",
        "The same text in another shape",
        "client",
        "send every message in one shape from the start",
        "A content is a list of blocks in one request and a plain string in another, with equal text.",
        "Providers hash or mark blocks, and some templates print a list differently from a string. Many render "
        "both alike: without a named target the change from a string to one text block is a suspicion only, and so "
        "is a reply that is given back in another shape than the response had.",
        "Choose one shape, usually the list (it can carry markers), and use it for new and old messages.",
    ),
    Cause(
        "AC118",
        "image_changed",
        "An image was changed, moved or taken away",
        "client",
        "leave media where they were first sent, with the same bytes and URL",
        "An image (or file, or sound) of an earlier message differs, is missing, or was attached to another "
        "message: encoded anew, a signed URL that expires, or an attachment that follows the newest message.",
        "An image is a run of tokens in the prompt. When it leaves its place, all behind it is computed again.",
        "Encode once, keep the bytes and the URL, and never move the part.",
    ),
    Cause(
        "AC119",
        "system_moved",
        "System text was put in front of the conversation",
        "client",
        "append system notes as messages, where they arose",
        "A system note from the middle of the conversation is collected into the system prompt, or a system "
        "message changes its place.",
        "The system prompt stands before all messages, so each added note makes all of them be computed again.",
        "Keep the system prompt as it was at the start. Send later notes in messages, also through a gateway.",
    ),
    Cause(
        "AC120",
        "parameter_changed",
        "A parameter that enters the prompt was changed",
        "client",
        "fix such parameters for the conversation",
        "Reasoning effort, thinking, tool choice, response format, template options, cache key or service tier "
        "differ from the request before.",
        "Many servers write these into the prompt or keep separate caches for them. Sampling and output limits "
        "don't count.",
        "Set them when the conversation starts. Where a change is worth its price, ask before it is made.",
    ),
    Cause(
        "AC121",
        "model_changed",
        "The model was changed",
        "client",
        "finish a conversation on the model that it began on, or branch with a short summary",
        "The request names another model than the one before.",
        "A cache belongs to one model: after a switch the whole prompt is computed, and after the switch back so "
        "is what was added in between.",
        "Route by conversation, not by request. Before a switch, show what it costs.",
    ),
    Cause(
        "AC130",
        "breakpoint_misplaced",
        "A cache marker stands behind text that changes",
        "client",
        "move the marker to the end of the part that stays equal",
        "The first marker covers a block that differs in every request; the static part before it has none.",
        "The entry is written under a hash over all blocks up to the marker. If one of them changes, each request "
        "pays for a write and none reads.",
        "Mark the last static block, and let the volatile block follow without a marker.",
    ),
    Cause(
        "AC131",
        "breakpoint_limit",
        "Too many cache markers",
        "client",
        "keep at most four markers: tools or system, and the newest messages",
        "A request carries more markers than the provider allows.",
        "The provider refuses the request, or a gateway drops markers that were needed.",
        "Remove old markers when setting new ones: one on the static head and one or two that move with the tail "
        "are enough.",
    ),
    Cause(
        "AC132",
        "breakpoint_lookback",
        "Too many blocks since the last marker",
        "client",
        "set a second marker every 15 blocks, or one on each turn's first result",
        "One turn added more content blocks than the provider looks back from a marker.",
        "The provider looks for the entry of an earlier marker a limited number of blocks back. Beyond that it "
        "finds nothing and reads only what a marker further up gives.",
        "When a turn adds many blocks (parallel calls), put an extra marker in between.",
    ),
    Cause(
        "AC140",
        "below_minimum",
        "The prefix is shorter than the server keeps",
        "server",
        "nothing to repair; small prompts are cheap, or merge short requests",
        "The request only extends the one before, but the server reports nothing reused: what they share is "
        "shorter than the minimum, or than one block of its cache.",
        "Providers cache from a minimum on (512 to 4,096 tokens), and paged caches keep whole blocks only; hybrid "
        "models have large ones.",
        "Expect no reuse below the limit. A longer static head (examples, reference text) can lift it above.",
    ),
    Cause(
        "AC141",
        "ttl_expired",
        "The cache entry expired",
        "time",
        "ask for a longer life, or send a keep-alive before the entry expires",
        "The request only extends the one before, but more time passed between them than an entry lives.",
        "The provider dropped the entry; the whole prompt is written again.",
        "Where pauses are usual (a person answers), compare the price of the longer life with that of a rewrite. "
        "Renewing by a tiny request before the end is cheaper than either when the pause is short.",
    ),
    Cause(
        "AC142",
        "slot_taken",
        "Another conversation took the slot",
        "server",
        "give each conversation a slot (-np), pin it (id_slot), or enable the prompt RAM cache",
        "A llama-server has fewer slots than conversations that take turns, or one with a similar prefix was put "
        "into this slot.",
        "A slot holds one prompt. The other conversation overwrote it, so this prompt is read from the start.",
        "Raise the number of slots, pin conversations with `id_slot`, send side requests elsewhere, or keep evicted "
        "prompts in memory with `--cache-ram`.",
    ),
    Cause(
        "AC143",
        "sliding_window",
        "A sliding-window cache can't go back",
        "server",
        "keep the history append-only on such models, or use full-size caches (--swa-full)",
        "The request changed something near its end; the text before it is equal, yet the server reuses nothing or "
        "falls back to a far earlier checkpoint.",
        "Layers with a sliding window (or a recurrent state) keep only the newest positions. To continue from an "
        "earlier one, the server needs a checkpoint there; without one it reads everything again.",
        "Append only. Raise the number of context checkpoints, or pay memory for `--swa-full`.",
    ),
    Cause(
        "AC144",
        "server_evicted",
        "The server no longer had the prefix",
        "server",
        "route a conversation to one server (cache key, session affinity) or give its cache more room",
        "The request only extends the one before, soon after it and long enough, yet little or nothing was reused.",
        "The entry was evicted, or the request reached another machine.",
        "Send a stable cache key or session header, and watch the cache's size against the load.",
    ),
    Cause(
        "AC145",
        "retokenised",
        "Equal text was encoded into other tokens",
        "tokenizer",
        "send token ids back, or end generation at places where the encoding is stable",
        "The reply goes back unchanged, but reuse stops inside it.",
        "The model generated one sequence of tokens; encoding the same text anew gave another, because pieces that "
        "were sampled separately merge. Reuse ends at the first different token.",
        "Where the API allows it, send generated token ids instead of text. Otherwise the loss is the rest of one "
        "reply, once.",
    ),
    Cause(
        "AC150",
        "template_made",
        "The chat template rewrote the history",
        "template",
        "use a template (or its option) that keeps earlier turns as they were",
        "The requests are append-only, but the rendered prompts aren't: the template drops earlier reasoning when a "
        "new user message arrives, prints a date, or treats the last message differently from earlier ones.",
        "The server caches what the template printed. When it prints an earlier message differently, reuse ends "
        "there, without any fault of the client.",
        "Check templates with `agentctx check template`. Many have an option that keeps old reasoning.",
    ),
    Cause(
        "AC190",
        "budget_exceeded",
        "A budget isn't kept",
        "several",
        "find the turns that cost most (agentctx check log), mend them, or raise the budget on purpose",
        "A log reuses less, or pays more tokens again, than the check allows.",
        "Each break may be small or wanted; together they cost more than was agreed.",
        "Look at the findings of the log: each says what it costs.",
    ),
    Cause(
        "AC199",
        "unexplained",
        "Less was reused than the request allowed",
        "unknown",
        "look at the server's log for this request; nothing in the requests explains it",
        "The server reused less than the shared prefix, and none of the known causes fits; or the log is a recording "
        "of the conversation, which doesn't show what the client changed besides (tools, system prompt, markers).",
        "Part of the prompt was paid again.",
        "Compare with the server's own log (slots, evictions, routing), or log the request bodies themselves.",
    ),
)

CAUSES: dict[str, Cause] = {cause.word: cause for cause in _ALL}
BY_CODE: dict[str, Cause] = {cause.code: cause for cause in _ALL}


def cause_of(name: str) -> Cause:
    """The cause with this code, word or name (``AC101``, ``volatile_text``, ``volatile-text``).

    Raises ``KeyError`` for an unknown one.
    """
    return BY_CODE.get(name.upper()) or CAUSES[name.replace("-", "_")]
