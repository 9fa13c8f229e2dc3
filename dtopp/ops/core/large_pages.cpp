#include "dtopp/ops/core/large_pages.h"

#include <bit>

#include <sys/mman.h>

namespace dtopp::ops {
// The allocator is not used: the kernel gives large pages to memory that was never written to.
Tensor empty_in_large_pages(at::IntArrayRef sizes, const at::TensorOptions& options) {
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  if (!options.device().is_cpu() || bytes < kLargePage) return at::empty(sizes, options);
  const size_t mapped = bytes + kLargePage;
  void* const begin = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return at::empty(sizes, options);  // throws if memory is short
  const size_t past = std::bit_cast<uintptr_t>(begin) % kLargePage;
  void* const first = static_cast<std::byte*>(begin) + (past == 0 ? 0 : kLargePage - past);
  ::madvise(first, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);  // a hint: it may fail
  return at::from_blob(
      first, sizes, [begin, mapped](void* /*first*/) { ::munmap(begin, mapped); }, options);
}

}  // namespace dtopp::ops
