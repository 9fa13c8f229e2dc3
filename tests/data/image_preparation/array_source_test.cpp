#include "dtopp/data/image_preparation/array_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/data/image_preparation/image_source.h"
#include "tests/data/image_preparation/image_fixtures.h"

namespace dtopp::data {
namespace {

using ::testing::HasSubstr;

// The header of an array in 128 bytes, as NumPy writes it.
std::string npy_header(const std::string& descr, const std::string& shape) {
  std::string dictionary = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  dictionary.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dictionary + "\n";
}

// Reading 2^60 empty samples would not end.
TEST(ArraySource, refuses_samples_without_numbers) {
  ScratchDirectory scratch;
  write_text(scratch / "a.npy", npy_header("<f4", "(1152921504606846976, 0, 1, 1)"));
  EXPECT_THAT(error_of<DataError>([&] { open_images(scratch / "a.npy"); }),
              HasSubstr("a.npy: holds samples without numbers"));
  write_safetensors(scratch / "a.safetensors",
                    {tensor("latents", "F32", {int64_t{1} << 60, 2, 0, 3}, std::vector<float>())});
  EXPECT_THAT(error_of<DataError>([&] { open_images(scratch / "a.safetensors"); }),
              HasSubstr("a.safetensors: holds samples without numbers"));
}

}  // namespace
}  // namespace dtopp::data
