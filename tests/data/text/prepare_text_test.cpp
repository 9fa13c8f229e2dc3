#include "dtopp/data/text/prepare_text.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/data/run_and_kill.h"
#include "tests/data/text/prepare_text_fixture.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

TEST_F(PrepareTextTest, writes_every_document_in_order_closed_by_end_of_text) {
  const auto result = prepare_text(options_);
  EXPECT_FALSE(result.was_complete);
  EXPECT_EQ(result.documents, documents_.size());
  const auto stream = TokenStream::open(options_.output);
  EXPECT_EQ(result.tokens, stream.size());
  EXPECT_EQ(stream.documents(), documents_.size());
  EXPECT_EQ(all_tokens(stream), byte_ids(documents_));
  EXPECT_EQ(read_file(options_.output / "tokenizer.json"), ByteEncoder().tokenizer_json);
  std::vector<std::string> names;
  for (const auto& [name, unused] : contents()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{".lock", "manifest.json", "tokenizer.json", "tokens.bin",
                                             "tokens.idx"}));
}

TEST_F(PrepareTextTest, divides_plain_text_at_the_separator) {
  write_bytes(scratch_ / "b.txt", "one\n--\n\ntwo lines\nof it\n--\n--three");
  const auto whole = std::ranges::find(documents_, "a file\nof its own\n");
  documents_.insert(documents_.erase(whole), {"one", "two lines\nof it", "three"});
  options_.split_on = "--";
  const auto expected = contents_without_interruption();
  int stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    try {
      prepare_text(options_, ByteEncoder(), 1);
      stopped = false;
    } catch (const Stopped&) {
    }
  }
  EXPECT_GT(stops, 10);
  EXPECT_EQ(contents(), expected);
  EXPECT_EQ(all_tokens(TokenStream::open(options_.output)), byte_ids(documents_));
}

TEST_F(PrepareTextTest, any_number_of_workers_writes_the_same_bytes) {
  options_.num_workers = 1;
  options_.batch_bytes = 1 << 20;
  const auto expected = contents_without_interruption();
  for (const int workers : {1, 2, 5}) {
    options_.num_workers = workers;
    options_.batch_bytes = 100;
    EXPECT_EQ(contents_without_interruption(), expected) << workers << " workers";
  }
}

TEST_F(PrepareTextTest, slow_documents_do_not_change_the_order) {
  struct SlowEncoder : ByteEncoder {
    mutable std::atomic<int> calls = 0;
    std::vector<int32_t> encode(std::string_view text) const override {
      if (++calls % 40 == 1) std::this_thread::sleep_for(3ms);
      return ByteEncoder::encode(text);
    }
  };
  options_.num_workers = 5;
  prepare_text(options_, SlowEncoder());
  EXPECT_EQ(all_tokens(TokenStream::open(options_.output)), byte_ids(documents_));
}

TEST_F(PrepareTextTest, a_stop_records_what_is_done_and_a_restart_goes_on) {
  const auto expected = contents_without_interruption();
  uint64_t resumed = 0;
  int stops = 0;
  for (;; ++stops) {
    ASSERT_LT(stops, 1000);
    options_.num_workers = 1 + stops % 3;
    options_.record_every = 1h;
    try {
      const auto result = prepare_text(options_, ByteEncoder(), 4);
      EXPECT_GE(result.resumed_documents, resumed);
      break;
    } catch (const Stopped& stopped) {
      const auto message = error_of<DataError>([&] { TokenStream::open(options_.output); });
      EXPECT_NE(message.find("not finished"), message.npos);
    }
  }
  EXPECT_GT(stops, 10);
  EXPECT_EQ(contents(), expected);
}

// Slow enough for a signal to meet it at work.
struct SlowEncoder : ByteEncoder {
  std::vector<int32_t> encode(std::string_view text) const override {
    std::this_thread::sleep_for(20us);
    return ByteEncoder::encode(text);
  }
};

TEST_F(PrepareTextTest, killed_at_random_moments_and_restarted_nothing_is_lost_or_repeated) {
  const auto expected = contents_without_interruption();
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp)
  options_.record_every = 0ms;
  int kills = 0;
  for (int round = 0; round < 12; ++round) {
    // Each kill lengthens the delay, because a busy machine starts slowly.
    while (!run_and_kill(500 + random() % (30000 + 300 * kills),
                         [&] { prepare_text(options_, SlowEncoder()); })) {
      ASSERT_LT(++kills, 2000) << "it does not get on";
    }
    ASSERT_EQ(contents(), expected) << "round " << round;
    fs::remove_all(options_.output);
  }
  EXPECT_GT(kills, 12);
}

TEST_F(PrepareTextTest, a_complete_folder_is_left_alone) {
  prepare_text(options_);
  const auto before = contents();
  struct NoEncoder : ByteEncoder {
    std::vector<int32_t> encode(std::string_view) const override { throw std::logic_error("encoded again"); }
  };
  const NoEncoder encoder;
  const auto result = prepare_text(options_, encoder);
  EXPECT_TRUE(result.was_complete);
  EXPECT_EQ(result.documents, documents_.size());
  EXPECT_EQ(contents(), before);
  // Text in a renamed file counts as the same text.
  fs::rename(scratch_ / "c.jsonl", scratch_ / "d.jsonl");
  options_.inputs[2] = scratch_ / "d.jsonl";
  EXPECT_TRUE(prepare_text(options_, encoder).was_complete);
}

TEST_F(PrepareTextTest, leftovers_of_the_last_moment_are_removed) {
  const auto expected = contents_without_interruption();
  EXPECT_THROW(prepare_text(options_, ByteEncoder(), 20), Stopped);
  const auto unfinished = contents();
  prepare_text(options_);
  for (const char* name : {"progress.json", "progress.lengths"})
    write_bytes(options_.output / name, unfinished.at(name));
  EXPECT_TRUE(prepare_text(options_).was_complete);
  EXPECT_EQ(contents(), expected);
}

}  // namespace

}  // namespace dtopp::data
