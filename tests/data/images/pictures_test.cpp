// Tests decoding, orienting and resizing. tests/python/data/test_image_files.py compares the results with
// Pillow's.
#include <cmath>
#include <limits>

#include "dtopp/base/safetensors.h"
#include "dtopp/data/images/image_source.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/images/prepare_images.h"
#include "tests/data/images/image_fixtures.h"

namespace dtopp::data {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(FloatType, every_half_is_the_number_that_ieee_754_says) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    const double size = exponent == 31  ? (fraction ? std::nan("") : HUGE_VAL)
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    const auto half = static_cast<uint16_t>(bits);
    float value = 0;
    widen(FloatType::kF16, std::as_bytes(std::span(&half, 1)), std::span(&value, 1));
    const double expected = bits & 0x8000 ? -size : size;
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected) << bits;
    ASSERT_EQ(all_finite(FloatType::kF16, std::as_bytes(std::span(&half, 1))), std::isfinite(expected));
  }
}

TEST(FloatType, numbers_that_are_not_finite_are_found) {
  for (const float number : {0.0F, 1e38F, -1e-40F}) {
    EXPECT_TRUE(all_finite(FloatType::kF32, std::as_bytes(std::span(&number, 1))));
  }
  for (const float number : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_FALSE(all_finite(FloatType::kF32, std::as_bytes(std::span(&number, 1))));
    const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16);
    EXPECT_FALSE(all_finite(FloatType::kBF16, std::as_bytes(std::span(&bits, 1))));
  }
}

TEST(Orientation, each_puts_the_same_picture_upright) {
  // 1 2
  // 3 4
  // 5 6  is the upright picture. The list shows how cameras store it.
  const std::vector<std::pair<int, Pixels>> stored = {
      {1, {1, 2, 3, 4, 5, 6}}, {2, {2, 1, 4, 3, 6, 5}}, {3, {6, 5, 4, 3, 2, 1}}, {4, {5, 6, 3, 4, 1, 2}},
      {5, {1, 3, 5, 2, 4, 6}}, {6, {2, 4, 6, 1, 3, 5}}, {7, {6, 4, 2, 5, 3, 1}}, {8, {5, 3, 1, 6, 4, 2}}};
  for (const auto& [orientation, pixels] : stored) {
    Picture picture(orientation < 5 ? 3 : 2, orientation < 5 ? 2 : 3, 1);
    picture.pixels = pixels;
    const Picture upright = turn_upright(picture, orientation);
    EXPECT_EQ(upright.height, 3);
    EXPECT_EQ(upright.pixels, (Pixels{1, 2, 3, 4, 5, 6})) << orientation;
  }
}

TEST(Orientation, damaged_data_count_as_upright) {
  const std::string good("Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0", 32);
  EXPECT_EQ(exif_orientation(bytes_of(good)), 6);
  for (size_t size = 0; size < 26; ++size) EXPECT_EQ(exif_orientation(bytes_of(good.substr(0, size))), 1);
  std::string out_of_range = good;
  out_of_range[25] = 9;
  EXPECT_EQ(exif_orientation(bytes_of(out_of_range)), 1);
  std::string far = good;
  far[10] = '\x7f';  // offset of the directory
  EXPECT_EQ(exif_orientation(bytes_of(far)), 1);
}

TEST(Resize, one_color_stays_that_color) {
  Picture picture(37, 91, 3);
  for (size_t i = 0; i < picture.pixels.size(); ++i)
    picture.pixels[i] = static_cast<uint8_t>(10 + i % 3 * 100);
  for (const int size : {1, 5, 20, 37, 64}) {
    const Picture square = crop_to_square(picture, size);
    ASSERT_EQ(square.height, size);
    ASSERT_EQ(square.width, size);
    for (size_t i = 0; i < square.pixels.size(); ++i) ASSERT_EQ(square.pixels[i], 10 + i % 3 * 100) << size;
  }
}

TEST(Resize, a_window_is_a_part_of_the_whole) {
  const Picture picture = random_picture(3, 50, 70);
  const Picture whole = resize(picture, 33, 41, ResizeFilter::kBicubic, {0, 33, 0, 41});
  const Picture part = resize(picture, 33, 41, ResizeFilter::kBicubic, {4, 20, 7, 30});
  for (int y = 0; y < 20; ++y)
    for (size_t x = 0; x < 90; ++x) ASSERT_EQ(part.row(y)[x], whole.row(y + 4)[x + 21]);
}

TEST(Resize, halves_by_a_box_filter_are_rounded_means) {
  const Picture picture = random_picture(4, 8, 8, 1);
  const Picture half = resize(picture, 4, 4, ResizeFilter::kBox, {0, 4, 0, 4});
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 4; ++x) {
      const auto row_mean = [&](int row) {
        return (picture.row(row)[2 * x] + picture.row(row)[2 * x + 1] + 1) / 2;
      };
      EXPECT_EQ(half.row(y)[x], (row_mean(2 * y) + row_mean(2 * y + 1) + 1) / 2);
    }
}

TEST(Pictures, a_png_gives_back_its_pixels) {
  for (const int channels : {1, 3}) {
    const Picture picture = random_picture(5, 131, 267, channels);  // larger than a chunk of libpng
    const auto decoded = decode_picture(bytes_of(encode_png(picture)), channels);
    EXPECT_EQ(decoded.picture.pixels, picture.pixels);
    EXPECT_EQ(decoded.format, PictureFormat::kPng);
  }
}

TEST(Pictures, the_beginning_declares_the_pixels) {
  const auto pixels = [](std::string_view file) { return declared_pixels(std::as_bytes(std::span(file))); };
  const std::string png = encode_png(random_picture(1, 20, 30));
  EXPECT_EQ(pixels(png), 600U);
  EXPECT_EQ(pixels(png.substr(0, 24)), 600U);
  EXPECT_EQ(pixels("text"), 0U);
  EXPECT_EQ(pixels(""), 0U);
  using namespace std::string_view_literals;
  // A JPEG: a comment of 3 bytes with the marker of a frame in it, fill bytes, and a frame of 258 x 772.
  constexpr auto kJpeg = "\xff\xd8\xff\xfe\0\x05\xff\xc0\0\xff\xff\xff\xc2\0\x0b\x08\x01\x02\x03\x04\x01"sv;
  EXPECT_EQ(pixels(kJpeg), uint64_t{258} * 772);
  EXPECT_EQ(pixels(kJpeg.substr(0, 12)), std::nullopt);
  EXPECT_EQ(pixels("\xff\xd8garbage"), std::nullopt);
}

TEST(Pictures, a_cut_png_is_an_error) {
  const std::string png = encode_png(random_picture(6, 9, 9));
  EXPECT_THROW(decode_picture(bytes_of(png.substr(0, png.size() / 2)), 3), DataError);
}

TEST(PicturesNightly, damaged_files_give_a_picture_or_an_error) {
  const std::string png = encode_png(random_picture(6, 9, 9));
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp)
  int errors = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = png.substr(0, random() % 3 ? png.size() : random() % png.size());
    for (unsigned i = 0; i < 1 + random() % 3 && !damaged.empty(); ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      decode_picture(bytes_of(damaged), 3);
    } catch (const DataError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 2000);
}

TEST(RawSample, names_tell_roles_keys_and_folders) {
  EXPECT_EQ(role_of("a/b.JPEG"), MemberRole::kPicture);
  EXPECT_EQ(role_of("a/b.tiff"), MemberRole::kUnknownPicture);
  EXPECT_EQ(role_of("a/.b.jpg"), MemberRole::kOther);
  EXPECT_EQ(role_of("a.jpg/b"), MemberRole::kOther);
  EXPECT_EQ(key_of("a.x/b.c.cls"), "a.x/b.c");
  EXPECT_EQ(folder_of("./b.jpg"), "");
  EXPECT_EQ(folder_of("top/cat/b.jpg"), "cat");
  EXPECT_EQ(name_fault("a/..b/c.jpg"), "");
  EXPECT_NE(name_fault("a/.."), "");
  EXPECT_EQ(printable("a\x1b\n\xff"), "a??\xef\xbf\xbd");
}

}  // namespace
}  // namespace dtopp::data
