#include "dtopp/data/images/image_data.h"

#include <cmath>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "tests/base/damage.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/images/image_fixtures.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

class ImageDataTest : public testing::Test {
 protected:
  // Latents in files of at most five samples.
  fs::path latents(const std::string& name = "latents") {
    arrays_.write(scratch_ / "a.safetensors");
    PrepareImagesOptions options;
    options.sources = {scratch_ / "a.safetensors"};
    options.output = scratch_ / name;
    options.shard_bytes = 4096 + 5 * 160;
    options.scale = {2.0};
    prepare_images(options);
    return options.output;
  }

  // Pictures by class, `size` pixels per side.
  fs::path pictures(const std::string& name, int size, int count = 5) {
    for (int i = 0; i < count; ++i)
      write_text(scratch_ / (name + "_source/" + (i % 2 ? "b/" : "a/") + std::to_string(i) + ".png"),
                 encode_png(random_picture(static_cast<unsigned>(i), size, size)));
    PrepareImagesOptions options;
    options.sources = {scratch_ / (name + "_source")};
    options.output = scratch_ / name;
    prepare_images(options);
    return options.output;
  }

  ScratchDirectory scratch_;
  LatentArrays arrays_;
};

TEST_F(ImageDataTest, gives_latents_labels_and_text_of_each_sample_across_files) {
  const auto data = ImageData::open({latents()});
  EXPECT_GE(contents_of(scratch_ / "latents").size(), 5U) << "several files";
  ASSERT_EQ(data.size(), 12U);
  EXPECT_TRUE(data.layout().is_latent && data.layout().has_flipped);
  EXPECT_EQ(data.layout().shape, (ImageShape{2, 2, 3}));
  EXPECT_EQ(data.layout().classes, (std::vector<std::string>{"0", "1", "2", "3"}));
  EXPECT_EQ(data.layout().scale, std::vector<double>{2.0});
  EXPECT_EQ(data.layout().shift, std::vector<double>{0.0});
  std::vector<float> latent(12), text(6);
  for (uint64_t i = 0; i < 12; ++i) {
    data.latent(i, false, latent);
    EXPECT_EQ(latent[11], 100.0F * static_cast<float>(i) + 11);
    data.latent(i, true, latent);
    EXPECT_EQ(latent[0], -100.0F * static_cast<float>(i));
    EXPECT_EQ(data.label(i), static_cast<int64_t>(i % 4));
    EXPECT_EQ(data.text(i, text), 2);
    EXPECT_EQ(text[5], static_cast<float>(i) + 0.625F);
  }
  EXPECT_THROW(data.label(12), std::out_of_range);
  EXPECT_THROW(data.latent(0, false, std::span(latent).first(11)), std::invalid_argument);
  std::vector<uint8_t> pixels(12);
  EXPECT_THROW(data.pixels(0, pixels), std::invalid_argument);
}

TEST_F(ImageDataTest, gives_pixels_channel_by_channel_from_arrays_and_files_alike) {
  for (const int size : {8, 64, 65}) {
    const auto data = ImageData::open({pictures("pictures" + std::to_string(size), size)});
    std::vector<uint8_t> pixels(data.layout().shape.elements());
    const std::vector<unsigned> order = {0, 2, 4, 1, 3};  // class a first, then class b
    for (uint64_t i = 0; i < order.size(); ++i) {
      data.pixels(i, pixels);
      const Picture picture = random_picture(order[i], size, size);
      for (size_t at = 0; at < pixels.size(); ++at) {
        const size_t plane = static_cast<size_t>(size) * static_cast<size_t>(size);
        ASSERT_EQ(pixels[at], picture.pixels[at % plane * 3 + at / plane]) << size << " " << at;
      }
      EXPECT_EQ(data.label(i), i < 3 ? 0 : 1);
    }
  }
}

TEST_F(ImageDataTest, folders_lie_end_to_end_and_must_be_alike) {
  const fs::path a = pictures("a", 8, 5), b = pictures("b", 8, 3), large = pictures("large", 16);
  const auto data = ImageData::open({a, b});
  ASSERT_EQ(data.size(), 8U);
  EXPECT_EQ(data.label(7), 1);
  EXPECT_NE(data.content_hash(), ImageData::open({b, a}).content_hash());
  const auto message = error_of<UsageError>([&] { ImageData::open({a, large}); });
  EXPECT_NE(message.find("pixels of 3 x 16 x 16"), message.npos) << message;
  const auto one_class = error_of<UsageError>([&] { ImageData::open({a, pictures("one", 8, 1)}); });
  EXPECT_NE(one_class.find("1 classes"), one_class.npos) << one_class;
}

// A map of the file would raise SIGBUS.
TEST_F(ImageDataTest, that_became_shorter_is_an_error) {
  for (const int size : {64, 65}) {
    const fs::path folder = pictures("pictures" + std::to_string(size), size);
    const auto data = ImageData::open({folder});
    fs::resize_file(folder / "images-00001.safetensors", 4096);
    std::vector<uint8_t> pixels(data.layout().shape.elements());
    const auto message = error_of<DataError>([&] { data.pixels(3, pixels); });
    EXPECT_NE(message.find("images-00001.safetensors: byte "), message.npos) << message;
    EXPECT_NE(message.find("it became shorter"), message.npos) << message;
  }
}

TEST_F(ImageDataTest, is_read_by_many_threads_at_once) {
  const auto data = ImageData::open({pictures("pictures", 70, 8)});
  std::vector<std::vector<uint8_t>> expected(8, std::vector<uint8_t>(data.layout().shape.elements()));
  for (uint64_t i = 0; i < 8; ++i) data.pixels(i, expected[i]);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<uint8_t> pixels(data.layout().shape.elements());
      for (uint64_t i = 0; i < 40; ++i) {
        data.pixels((i * (t + 1)) % 8, pixels);
        wrong += pixels != expected[(i * (t + 1)) % 8];
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ImageDataTest, damage_of_any_file_of_a_prepared_folder_is_found_and_the_file_named) {
  const fs::path folder = latents();
  for (const auto& [name, bytes] : contents_of(folder)) {
    if (name.starts_with('.')) continue;
    expect_damage_is_named<DataError>(folder / name, [&] { ImageData::open({folder}, Verify::kAll); });
    write_text(folder / name, bytes.substr(0, bytes.size() - 1));
    EXPECT_THROW(ImageData::open({folder}, Verify::kSizes), DataError) << name;
    write_text(folder / name, bytes);
  }
  ImageData::open({folder}, Verify::kAll);
}

TEST_F(ImageDataTest, a_missing_folder_is_named_with_the_command_that_makes_it) {
  const fs::path missing = scratch_ / "missing";
  const auto message = error_of<DataError>([&] { ImageData::open({missing}); });
  EXPECT_NE(message.find("dtopp prepare images SOURCES --output " + missing.string()), message.npos)
      << message;
}

TEST_F(ImageDataTest, a_file_that_the_manifest_does_not_know_is_named) {
  const fs::path folder = latents();
  write_text(folder / "images-00009.safetensors", "");
  const auto message = error_of<DataError>([&] { ImageData::open({folder}); });
  EXPECT_NE(message.find("images-00009"), message.npos) << message;
}

// Writes a folder whose checksums are right and whose tensors are `tensors`.
void rewrite(const fs::path& folder, const std::vector<TensorSource>& tensors, int images) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  write_safetensors(folder / "images-00001.safetensors", tensors);
  const std::string about = R"({"kind": "encoded", "images": )" + std::to_string(images) +
                            R"(, "shape": [3, 70, 70], "classes": ["a", "b"], "skipped": [], )"
                            R"("job": {"size": 0, "channels": 3, "sources": []}})";
  const fs::path shard = folder / "images-00001.safetensors";
  write_text(folder / "manifest.json",
             format_manifest({kImageDataFormat,
                              about,
                              {{"images-00001.safetensors", {fs::file_size(shard), hash_file(shard)}}}}));
}

TEST_F(ImageDataTest, hostile_tensors_are_refused_by_file_and_sample) {
  const std::string png = encode_png(random_picture(1, 70, 70)),
                    other = encode_png(random_picture(1, 70, 71));
  const std::vector<char> good(png.begin(), png.end()), large(other.begin(), other.end());
  const auto size = static_cast<int64_t>(png.size()), large_size = static_cast<int64_t>(other.size());
  std::vector<uint8_t> pixels(size_t{3} * 70 * 70);
  struct Case {
    std::vector<char> bytes;
    std::vector<int64_t> offsets, labels;
    const char* cause;
  };
  const std::vector<Case> cases = {
      {good, {0, size}, {0}, ""},
      {good, {0, size + 1}, {0}, "sample 0: its offsets"},
      {good, {-1, size}, {0}, "sample 0: its offsets"},
      {good, {size, 0}, {0}, "sample 0: its offsets"},
      {good, {0, size - 20}, {0}, "sample 0: damaged PNG"},
      {good, {0, 0}, {0}, "sample 0: is empty"},
      {large, {0, large_size}, {0}, "sample 0: has another size"},
      {good, {0, size}, {2}, "sample 0: label 2"},
      {good, {0, size}, {-1}, "sample 0: label -1"},
      {good, {0, size}, {0, 1}, "hold 1 and 2 samples"},
      {good, {}, {}, "offsets must be"},
  };
  for (const Case& test : cases) {
    rewrite(scratch_ / "data",
            {tensor("bytes", "U8", {static_cast<int64_t>(test.bytes.size())}, test.bytes),
             tensor("offsets", "I64", {static_cast<int64_t>(test.offsets.size())}, test.offsets),
             tensor("labels", "I64", {static_cast<int64_t>(test.labels.size())}, test.labels)},
            1);
    const auto read = [&] {
      const auto data = ImageData::open({scratch_ / "data"}, Verify::kAll);
      data.label(0);
      data.pixels(0, pixels);
    };
    if (*test.cause == '\0') {
      read();
      continue;
    }
    const auto message = error_of<DataError>(read);
    EXPECT_NE(message.find(test.cause), message.npos) << message;
    EXPECT_NE(message.find("images-00001.safetensors"), message.npos) << message;
  }
}

TEST(ImageOrder, each_epoch_is_another_permutation_that_the_seed_decides) {
  const ImageOrder order(100, 7), same(100, 7), other(100, 8);
  std::vector<uint64_t> epochs[2];
  for (uint64_t i = 0; i < 200; ++i) {
    epochs[i / 100].push_back(order(i));
    EXPECT_EQ(order(i), same(i));
  }
  for (const auto& epoch : epochs) EXPECT_EQ(std::set<uint64_t>(epoch.begin(), epoch.end()).size(), 100U);
  EXPECT_NE(epochs[0], epochs[1]);
  std::vector<uint64_t> of_other(100);
  for (uint64_t i = 0; i < 100; ++i) of_other[i] = other(i);
  EXPECT_NE(of_other, epochs[0]);
}

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
