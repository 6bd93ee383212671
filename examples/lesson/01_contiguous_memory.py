"""Example 1: one contiguous region for each sequence wastes memory inside the regions and between them."""

from __future__ import annotations

from agentctx_engine.memory import FirstFitAllocator, ReserveMaximum

POOL = 8192

reserving = ReserveMaximum(POOL, 2048)
for tokens in (300, 1200, 150, 700, 500):
    region = reserving.admit(tokens)
    print(f"sequence of {tokens:>5,} tokens:", f"slots from {region.start:,}" if region else "rejected")
reserved, stored = reserving.num_reserved_slots, reserving.num_tokens
print(f"reserving the maximum: {reserved} slots reserved, {stored} stored, {reserving.utilisation:.1%}\n")

exact = FirstFitAllocator(POOL)
regions = [exact.allocate(slots) for slots in (1500, 600, 1800, 400, 2000, 1000)]
for leaving in (regions[1], regions[3]):
    assert leaving is not None
    exact.free(leaving)
print(f"exact reservations: {exact.num_free_slots} slots free, in gaps of {exact.gaps}")
print("a request of 900 slots:", "admitted" if exact.allocate(900) else "rejected, no gap is large enough")
