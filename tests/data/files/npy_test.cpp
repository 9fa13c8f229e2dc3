#include "dtopp/data/files/npy.h"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/scratch_directory.h"

namespace dtopp::data {

// tests/python/generate/test_sample.py tests that NumPy reads the files.

namespace {

TEST(NpzWriter, refuses_more_bytes_and_fewer_than_an_array_has) {
  ScratchDirectory scratch;
  OutputFile file(scratch / "a.npz");
  NpzWriter npz(file);
  const std::vector<std::byte> bytes(25);
  npz.begin("arr_0", "<f4", {2, 3});
  EXPECT_THROW(npz.write(bytes), std::invalid_argument);
  npz.write(std::span(bytes).first(20));
  EXPECT_THROW(npz.begin("arr_1", "|u1", {1}), std::invalid_argument);
  EXPECT_THROW(npz.finish(), std::invalid_argument);
  npz.write(std::span(bytes).first(4));
  EXPECT_THROW(npz.begin("arr_1", "<f8", {1}), std::invalid_argument);
  npz.finish();
}

TEST(NpzWriter, tells_what_the_system_refuses) {
  OutputFile file("/dev/full");
  NpzWriter npz(file);
  const std::vector<std::byte> bytes(1 << 24);
  npz.begin("arr_0", "|u1", {1 << 24});
  EXPECT_THROW(npz.write(bytes), DataError);
}

}  // namespace

}  // namespace dtopp::data
