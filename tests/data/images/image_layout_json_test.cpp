#include "dtopp/data/images/image_layout_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::data {
namespace {

using testing::HasSubstr;

ImageLayout latents() {
  ImageLayout layout;
  layout.is_latent = true;
  layout.shape = {4, 32, 32};
  layout.classes = {"cat", "größer \"x\""};
  layout.text_size = 768;
  layout.text_length = 77;
  layout.scale = {0.1, 1.0 / 3.0, 2, 1e-9};
  layout.shift = {-0.25};
  return layout;
}

TEST(ImageLayoutJson, reads_back_what_was_written) {
  const ImageLayout written = latents();
  const ImageLayout read = parse_image_layout(format_image_layout(written), "images.json");
  require_alike(written, "written", read, "read");
  EXPECT_EQ(read.text_length, 77);
  ImageLayout pixels;
  pixels.shape = {3, 8, 8};
  EXPECT_FALSE(parse_image_layout(format_image_layout(pixels), "images.json").is_latent);
}

TEST(ImageLayoutJson, names_file_and_member_of_what_is_wrong) {
  const auto error_with = [](const std::string& from, const std::string& to) {
    std::string text = format_image_layout(latents());
    text.replace(text.find(from), from.size(), to);
    return error_of<DataError>([&] { parse_image_layout(text, "folder/images.json"); });
  };
  EXPECT_THAT(error_with("\"latents\"", "\"paint\""), HasSubstr("folder/images.json: kind"));
  EXPECT_THAT(error_with("    4,", "    0,"), HasSubstr("folder/images.json: shape"));
  EXPECT_THAT(error_with("    4,", "    4.5,"), HasSubstr("folder/images.json: shape"));
  EXPECT_THAT(error_with("    4,", "    1e300,"), HasSubstr("folder/images.json: shape"));
  EXPECT_THAT(error_with("\"cat\"", "7"), HasSubstr("folder/images.json: classes"));
  EXPECT_THAT(error_with("768", "-1"), HasSubstr("folder/images.json: text_size"));
  EXPECT_THAT(error_with("0.1", "0"), HasSubstr("folder/images.json: scale"));
  EXPECT_THAT(error_with("-0.25", "-0.25, 1"), HasSubstr("folder/images.json: shift"));
  EXPECT_THAT(error_with("\"shift\"", "\"shaft\""), HasSubstr("folder/images.json: shift"));
}

}  // namespace
}  // namespace dtopp::data
