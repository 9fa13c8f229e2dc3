#include "dtopp/data/images/prepare_images.h"

#include <chrono>

#include "dtopp/data/images/image_data.h"
#include "tests/data/images/image_fixtures.h"
#include "tests/data/run_and_kill.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Pictures in two folders, some of them broken; they are stored as encoded files, in small output files.
class PrepareImagesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 40; ++i) {
      const std::string name = std::to_string(1000 + i) + ".png";
      write_text(scratch_ / (i % 2 ? "one" : "two") / ("class" + std::to_string(i % 3)) / name,
                 i % 13 == 5 ? "broken" : encode_png(random_picture(static_cast<unsigned>(i), 66, 66)));
    }
    options_.sources = {scratch_ / "one", scratch_ / "two"};
    options_.output = scratch_ / "out";
    options_.num_workers = 2;
    options_.max_bad = 10;
    options_.shard_bytes = 100'000;
  }

  std::map<std::string, std::string> contents_without_interruption() {
    prepare_images(options_);
    auto files = contents_of(options_.output);
    fs::remove_all(options_.output);
    return files;
  }

  ScratchDirectory scratch_;
  PrepareImagesOptions options_;
};

TEST_F(PrepareImagesTest, any_number_of_workers_writes_the_same_bytes) {
  const auto expected = contents_without_interruption();
  EXPECT_GT(expected.size(), 5U) << "several files";
  for (const auto& [name, bytes] : expected) EXPECT_LE(bytes.size(), options_.shard_bytes) << name;
  for (const int workers : {1, 5}) {
    options_.num_workers = workers;
    EXPECT_EQ(contents_without_interruption(), expected) << workers << " workers";
  }
}

TEST_F(PrepareImagesTest, a_stop_records_what_is_done_and_a_restart_goes_on) {
  const auto expected = contents_without_interruption();
  int stops = 0;
  for (;; ++stops) {
    ASSERT_LT(stops, 1000);
    options_.record_every = 1h;
    try {
      prepare_images(options_, 1);
      break;
    } catch (const Stopped&) {
      const auto message = error_of<DataError>([&] { ImageData::open({options_.output}); });
      EXPECT_NE(message.find("not finished"), message.npos);
    }
  }
  EXPECT_EQ(stops, 40) << "a stop after each sample";
  EXPECT_EQ(contents_of(options_.output), expected);
}

TEST_F(PrepareImagesTest, killed_at_random_moments_and_restarted_nothing_is_lost_or_repeated) {
  const auto expected = contents_without_interruption();
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp)
  options_.record_every = 0ms;
  int kills = 0;
  for (int round = 0; round < 8 || kills <= 8; ++round) {
    ASSERT_LT(round, 1000) << "it always finishes first";
    // Each kill lengthens the delay, because a busy machine starts slowly.
    while (!run_and_kill(200 + random() % (6000 + 200 * kills), [&] { prepare_images(options_); })) {
      ASSERT_LT(++kills, 2000) << "it does not get on";
    }
    ASSERT_EQ(contents_of(options_.output), expected) << "round " << round;
    fs::remove_all(options_.output);
  }
}

TEST_F(PrepareImagesTest, what_an_interrupted_run_left_must_be_there_unchanged) {
  EXPECT_THROW(prepare_images(options_, 25), Stopped);
  const auto before = contents_of(options_.output);
  for (const char* name :
       {"progress.bytes", "progress.labels", "progress.json", "images-00001.safetensors"}) {
    ASSERT_TRUE(before.contains(name)) << name;
    std::string damaged = before.at(name);
    damaged.pop_back();
    write_text(options_.output / name, damaged);
    EXPECT_THROW(prepare_images(options_), DataError) << name;
    write_text(options_.output / name, before.at(name));
  }
  prepare_images(options_);
}

TEST_F(PrepareImagesTest, a_repaired_picture_starts_an_unfinished_folder_again) {
  options_.max_bad = 2;
  EXPECT_THROW(prepare_images(options_), DataError);
  ASSERT_TRUE(fs::exists(options_.output / "images-00002.safetensors"));
  fs::remove_all(scratch_ / "one");
  write_text(scratch_ / "one/class0/1.png", encode_png(random_picture(1, 66, 66)));
  for (const auto& entry : fs::recursive_directory_iterator(scratch_ / "two"))
    if (entry.path().filename() != "1004.png" && entry.is_regular_file()) fs::remove(entry.path());
  ImagePreparation preparation(options_);
  while (preparation.next()) {
  }
  EXPECT_NE(preparation.progress().restart_reason.find("source 1 was one"), std::string::npos);
  EXPECT_EQ(preparation.facts().images, 2U);
  const auto again = contents_of(options_.output);
  fs::remove_all(options_.output);
  EXPECT_EQ(again, contents_without_interruption());
}

TEST_F(PrepareImagesTest, samples_left_out_are_recorded_and_counted_across_interruptions) {
  options_.max_bad = 3;
  const ImageFacts facts = prepare_images(options_);
  EXPECT_EQ(facts.images, 37U);
  EXPECT_EQ(facts.skipped.size(), 3U);
  fs::remove_all(options_.output);
  options_.max_bad = 2;
  for (int i = 0; i < 2; ++i) {
    const auto message = error_of<DataError>([&] { prepare_images(options_); });
    EXPECT_NE(message.find("--max-bad"), message.npos) << message;
  }
  options_.max_bad = 3;
  EXPECT_EQ(prepare_images(options_).images, 37U);
}

}  // namespace

}  // namespace dtopp::data
