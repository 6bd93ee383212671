"""Example 6: a block's hash names its tokens and everything before them."""

from __future__ import annotations

from agentctx_engine.memory import BlockHasher, KVManager

BASE = [11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34, 41, 42]


def chain(tokens: list[int], salt: bytes = b"") -> list[str]:
    return [digest.hex()[:8] for digest in BlockHasher().chain(tokens, 4, every=salt)]


late, early = list(BASE), list(BASE)
late[9] = early[1] = 99
print("base:      ", *chain(BASE))
print("late edit: ", *chain(late))
print("early edit:", *chain(early))
print("salted:    ", *chain(BASE, b"tenant-b"))
hashed = 4 * len(chain(BASE))
print(f"{len(chain(BASE))} full blocks of {len(BASE)} tokens, {len(BASE) - hashed} tokens not hashed\n")

# The last token must be computed to get logits, and only whole blocks are shared.
kv = KVManager(16, 16)
prompt = list(range(64))
first = kv.open(prompt)
kv.admit(first, 64)
kv.commit(first, 64)
kv.free(first)
again = kv.open(prompt)
match = kv.explain(again, kv.match(again))
print(f"the same prompt of {len(prompt)} tokens again: {match.hit_tokens} reused")
for reason, tokens in match.lost:
    print(f"  not reused: {tokens} for {reason.value}")
