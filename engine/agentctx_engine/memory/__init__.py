"""Memory manager: which block holds what, and what may be reused. No torch."""

# One import per line and module, so that parts land without touching each other's lines.
from .block_hash import NO_KEYS as NO_KEYS
from .block_hash import Adapter as Adapter
from .block_hash import BlockHasher as BlockHasher
from .block_hash import ExtraKeys as ExtraKeys
from .block_hash import ImageSpan as ImageSpan
from .block_pool import BlockPool as BlockPool
from .block_table import BlockTable as BlockTable
from .block_table import pad_block_tables as pad_block_tables
from .contiguous import FirstFitAllocator as FirstFitAllocator
from .contiguous import Region as Region
from .contiguous import ReserveMaximum as ReserveMaximum
from .errors import IntegrityError as IntegrityError
from .errors import OutOfBlocks as OutOfBlocks
from .free_queue import FreeQueue as FreeQueue
from .host_tier import BlockCopy as BlockCopy
from .host_tier import Transfers as Transfers
from .kv_events import AllBlocksCleared as AllBlocksCleared
from .kv_events import BlockRemoved as BlockRemoved
from .kv_events import BlocksStored as BlocksStored
from .kv_manager import KVManager as KVManager
from .kv_sequence import KVSequence as KVSequence
from .layer_groups import FullAttention as FullAttention
from .layer_groups import SlidingWindow as SlidingWindow
from .paged_cache import PagedCache as PagedCache
from .paged_cache import PagedLease as PagedLease
from .prefix_cache import CacheStats as CacheStats
from .prefix_cache import Lease as Lease
from .prefix_cache import Lost as Lost
from .prefix_cache import Match as Match
from .prefix_cache import PrefixCache as PrefixCache
from .prefix_index import Hit as Hit
from .radix_cache import RadixCache as RadixCache
from .slot_cache import SlotCache as SlotCache
