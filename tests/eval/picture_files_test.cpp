#include "dtopp/eval/picture_files.h"

#include <gtest/gtest.h>

#include "dtopp/base/errors.h"

namespace dtopp::eval {
namespace {

data::ImageLayout pixels(int64_t channels) {
  data::ImageLayout layout;
  layout.shape = {channels, 4, 4};
  return layout;
}

TEST(PictureFiles, of_any_format_hold_gray_or_rgb_pictures) {
  for (const char* output : {"a.npz", "a.png", "/nowhere/folder"}) {
    for (const int64_t channels : {1, 3}) EXPECT_NO_THROW(require_writable(output, {}, pixels(channels)));
    for (const int64_t channels : {2, 4})
      EXPECT_THROW(require_writable(output, {}, pixels(channels)), UsageError) << output;
  }
}

}  // namespace
}  // namespace dtopp::eval
