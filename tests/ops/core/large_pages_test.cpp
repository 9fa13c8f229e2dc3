#include "dtopp/ops/core/large_pages.h"

#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace dtopp::ops {
namespace {

// Whether the kernel was asked for large pages at this address (VmFlags of its mapping contain hg).
bool asks_for_large_pages(const void* address) {
  const auto wanted = std::bit_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin <= wanted && wanted < end;
    if (inside && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

TEST(EmptyInLargePages, asks_for_them_from_a_large_page_on) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
    GTEST_SKIP() << "this kernel has no large pages";
  const int64_t page = int64_t{2} << 20;
  const at::Tensor small = empty_in_large_pages({page / 4 - 1}, at::kFloat);
  const at::Tensor large = empty_in_large_pages({2, page / 4 + 5}, at::kFloat);
  EXPECT_FALSE(asks_for_large_pages(small.const_data_ptr()));
  EXPECT_TRUE(asks_for_large_pages(large.const_data_ptr()));
  EXPECT_EQ(std::bit_cast<uintptr_t>(large.const_data_ptr()) % page, 0);
}

TEST(EmptyInLargePages, gives_a_tensor_of_its_own_memory) {
  for (const int64_t size : {0, 7, 3 << 20}) {
    const at::Tensor a = empty_in_large_pages({size, 2}, at::kBFloat16),
                     b = empty_in_large_pages({size, 2}, at::kBFloat16);
    a.fill_(1);
    b.fill_(2);
    EXPECT_EQ(a.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(a, at::ones({size, 2}, at::kBFloat16)));
    EXPECT_TRUE(at::equal(b, at::full({size, 2}, 2, at::kBFloat16)));
  }
}

}  // namespace
}  // namespace dtopp::ops
