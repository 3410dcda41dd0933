// Allocation of shared arrays with poisoned gaps, and race detection per 4-byte word.
#include "shared_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "sanitizer.h"

namespace lb::gpu::sim {
namespace {

constexpr size_t kAlignment = 128;
// As on a chip: static arrays start at a multiple of 1024 bytes, and dynamic memory follows them.
constexpr size_t kBlockAlignment = 1024, kDynamicStart = 256;
constexpr size_t kGap = 64;         // bytes between arrays
constexpr size_t kMaxArrays = 256;  // per block
constexpr int kUnset = 0xff;        // NaN as f32, f16 or bf16
constexpr size_t kStaticRoom = SharedMemory::kStaticLimit + kMaxArrays * (kGap + kAlignment);

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void SharedMemory::Free::operator()(std::byte* p) const { std::free(p); }

void SharedMemory::begin(size_t dynamic_bytes) {
  const size_t static_start = round_up(kDynamicStart + dynamic_bytes + kGap, kAlignment);
  const size_t needed = round_up(static_start + kStaticRoom, kBlockAlignment);
  if (needed > capacity_) {
    unpoison(memory_.get(), std::exchange(capacity_, 0));
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockAlignment, needed)));
    if (!memory_) throw std::bad_alloc();
    capacity_ = needed;
    poison(memory_.get(), capacity_);
    regions_.clear();
    words_.assign(capacity_ / 4, Word{});
    pieces_.assign(capacity_ / kPiece, Piece{});
    epoch_ = 0;
  }
  ++epoch_;
  for (const Region& region : regions_) poison(region.begin, region.bytes);
  regions_.clear();
  static_bytes_ = 0;
  dynamic_bytes_ = dynamic_bytes;
  dynamic_ = memory_.get() + kDynamicStart;
  add_region(nullptr, dynamic_, dynamic_bytes);
  next_ = memory_.get() + static_start;
}

void SharedMemory::add_region(const SharedSite* site, std::byte* p, size_t bytes) {
  unpoison(p, bytes);
  std::memset(p, kUnset, bytes);
  regions_.push_back({p, bytes, site});
}

void* SharedMemory::array(const SharedSite& site) {
  for (const Region& region : regions_) {
    if (region.site == &site) return const_cast<std::byte*>(region.begin);
  }
  const size_t alignment = std::max<size_t>(site.alignment, 16);
  if (static_bytes_ + site.bytes > kStaticLimit || regions_.size() > kMaxArrays || alignment > kAlignment)
    return nullptr;
  static_bytes_ = round_up(static_bytes_, site.alignment) + site.bytes;
  std::byte* p = memory_.get() + round_up(size_t(next_ - memory_.get()), alignment);
  next_ = p + site.bytes + kGap;
  add_region(&site, p, site.bytes);
  return p;
}

const SharedMemory::Region* SharedMemory::find(const void* p, size_t bytes) const {
  for (const Region& region : regions_) {
    const size_t offset = size_t(static_cast<const std::byte*>(p) - region.begin);  // huge when p is below
    if (offset < region.bytes && bytes <= region.bytes - offset) return &region;
  }
  return nullptr;
}

SharedMemory::Race SharedMemory::note(const void* p, size_t bytes, Access access, Accessor who) {
  const size_t begin = size_t(static_cast<const std::byte*>(p) - memory_.get());
  const uint32_t epoch = epoch_;
  Word* const words = words_.data();
  const bool whole_words = (begin | bytes) % 4 == 0;
  for (size_t at = begin; at < begin + bytes;) {
    const size_t end = whole_words ? at + 4 : std::min(begin + bytes, (at / 4 + 1) * 4);
    const uint8_t mask = whole_words ? 0xf : uint8_t((0xf << at % 4 & 0xf) & (0xf >> (3 - (end - 1) % 4)));
    // Changed in place. In a local copy, the load of the whole word waits for the stores of its fields: half the time
    // of a test with a model.
    Word& word = words[at / 4];
    at = end;

    const int warp = who.thread / 32;
    if (word.write_epoch == epoch && word.writer != who.thread) {
      const bool same_warp = word.writer / 32 == warp, ordered = same_warp && word.write_warp_epoch != who.warp_epoch;
      const uint8_t written = same_warp ? word.recent_bytes : word.write_bytes;
      if ((written & mask) && !ordered && !(access == Access::kAtomic && word.is_atomic)) return {word.writer, true};
    }
    if (access == Access::kRead) {
      if (word.read_epoch != epoch) {
        word.readers = 1;
        word.read_bytes = mask;
      } else {
        if (word.reader / 32 != warp) {
          word.readers = 3;
        } else if (word.reader != who.thread && word.readers == 1) {
          word.readers = 2;
        }
        word.read_bytes |= mask;
      }
      word.read_epoch = epoch;
      word.read_warp_epoch = who.warp_epoch;
      word.reader = who.thread;
      continue;
    }
    if (word.read_epoch == epoch && (word.read_bytes & mask)) {
      const bool other_reads = word.readers > 1 || word.reader != who.thread;
      const bool ordered = word.readers < 3 && word.reader / 32 == warp && word.read_warp_epoch != who.warp_epoch;
      if (other_reads && !ordered) return {word.reader, false};
    }
    const bool same_writer = word.write_epoch == epoch && word.writer == who.thread;
    const bool is_recent = same_writer && word.write_warp_epoch == who.warp_epoch;
    word.write_bytes = same_writer ? word.write_bytes | mask : mask;
    word.recent_bytes = is_recent ? word.recent_bytes | mask : mask;
    word.write_epoch = epoch;
    word.write_warp_epoch = who.warp_epoch;
    word.writer = who.thread;
    word.is_atomic = access == Access::kAtomic;
  }
  if (access == Access::kRead && bytes == kPiece && begin % kPiece == 0) note_readers(begin, who);
  return {-1, false};
}

// Records that these 16 bytes have several readers, after one of them has read them.
void SharedMemory::note_readers(size_t begin, Accessor who) {
  const Word* const words = words_.data() + begin / 4;
  uint8_t fewest = 3;
  for (size_t i = 0; i < kPiece / 4; ++i) fewest = std::min(fewest, uint8_t(words[i].readers));
  if (fewest > 1) pieces_[begin / kPiece] = {epoch_, who.warp_epoch, fewest == 3 ? kSeveral : who.thread / 32};
}

}  // namespace lb::gpu::sim
