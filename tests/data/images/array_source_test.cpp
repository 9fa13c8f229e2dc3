#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/data/images/image_source.h"
#include "tests/data/images/image_fixtures.h"

namespace dtopp::data {
namespace {

using ::testing::HasSubstr;

// The header of an array in 128 bytes, as NumPy writes it.
std::string npy_start(const std::string& descr, const std::string& shape) {
  std::string dictionary = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  dictionary.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dictionary + "\n";
}

// Reading 2^60 empty samples would not end.
TEST(ArraySource, refuses_samples_without_numbers) {
  ScratchDirectory scratch;
  write_text(scratch / "a.npy", npy_start("<f4", "(1152921504606846976, 0, 1, 1)"));
  EXPECT_THAT(error_of<DataError>([&] { open_images(scratch / "a.npy"); }),
              HasSubstr("a.npy: holds samples without numbers"));
  write_safetensors(scratch / "a.safetensors",
                    {tensor("latents", "F32", {int64_t{1} << 60, 2, 0, 3}, std::vector<float>())});
  EXPECT_THAT(error_of<DataError>([&] { open_images(scratch / "a.safetensors"); }),
              HasSubstr("a.safetensors: holds samples without numbers"));
}

// A map of the file would raise SIGBUS.
TEST(ArraySource, that_became_shorter_is_an_error) {
  ScratchDirectory scratch;
  const std::string samples(4 * 16'384, '\0');
  write_text(scratch / "a.npy", npy_start("<f4", "(4, 1, 64, 64)") + samples);
  write_safetensors(scratch / "a.safetensors",
                    {tensor("latents", "F32", {4, 1, 64, 64}, std::vector<float>(4 * 4096))});
  for (const char* name : {"a.npy", "a.safetensors"}) {
    const auto source = open_images(scratch / name);
    EXPECT_EQ(source->next(/*load=*/true)->image->bytes.size(), 16'384U);
    std::filesystem::resize_file(scratch / name, 30'000);
    EXPECT_THAT(error_of<DataError>([&] { source->next(/*load=*/true); }), HasSubstr("it became shorter"));
  }
}

}  // namespace

}  // namespace dtopp::data
