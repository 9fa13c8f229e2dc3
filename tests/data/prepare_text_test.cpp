#include "dtopp/data/prepare_text.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Two files of lines, some blank or without text, and a plain one between.
class PrepareTextTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same text each time
    write_bytes(scratch_ / "a.jsonl", lines(random, 400));
    write_bytes(scratch_ / "b.txt", "a file\nof its own\n");
    documents_.emplace_back("a file\nof its own\n");
    write_bytes(scratch_ / "c.jsonl", lines(random, 300));
    options_.inputs = {scratch_ / "a.jsonl", scratch_ / "b.txt", scratch_ / "c.jsonl"};
    options_.output = scratch_ / "tokens";
    options_.num_workers = 2;
    options_.batch_bytes = 200;
  }

  std::string lines(std::mt19937& random, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const std::string document(random() % 40, static_cast<char>('a' + random() % 26));
      text += "{\"text\": \"" + document + "\"}" + (i % 3 == 0 ? "\r\n" : "\n") + (i % 50 == 7 ? "\n" : "");
      if (!document.empty()) documents_.push_back(document);
    }
    return text;
  }

  // Every file of the finished folder.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(options_.output))
      files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  }

  std::map<std::string, std::string> contents_without_interruption() {
    prepare_text(options_, byte_encoder());
    auto files = contents();
    fs::remove_all(options_.output);
    return files;
  }

  ScratchDirectory scratch_;
  PrepareTextOptions options_;
  std::vector<std::string> documents_;
};

TEST_F(PrepareTextTest, writes_every_document_in_order_closed_by_end_of_text) {
  const auto result = prepare_text(options_, byte_encoder());
  EXPECT_FALSE(result.was_complete);
  EXPECT_EQ(result.documents, documents_.size());
  const auto stream = TokenStream::open(options_.output);
  EXPECT_EQ(result.tokens, stream.size());
  EXPECT_EQ(stream.documents(), documents_.size());
  EXPECT_EQ(all_tokens(stream), byte_ids(documents_));
  EXPECT_EQ(read_file(options_.output / "tokenizer.json"), byte_encoder().tokenizer_json);
  std::vector<std::string> names;
  for (const auto& [name, unused] : contents()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{".lock", "manifest.json", "tokenizer.json", "tokens.bin",
                                             "tokens.idx"}));
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
  TextEncoder encoder = byte_encoder();
  encoder.encode = [encode = encoder.encode,
                    calls = std::make_shared<std::atomic<int>>(0)](std::string_view text) {
    if (++*calls % 40 == 1) std::this_thread::sleep_for(3ms);
    return encode(text);
  };
  options_.num_workers = 5;
  prepare_text(options_, encoder);
  EXPECT_EQ(all_tokens(TokenStream::open(options_.output)), byte_ids(documents_));
}

TEST_F(PrepareTextTest, a_stop_records_what_is_done_and_a_restart_goes_on) {
  const auto expected = contents_without_interruption();
  uint64_t resumed = 0;
  int stops = 0;
  for (;; ++stops) {
    ASSERT_LT(stops, 1000);
    PrepareTextObserver observer;
    int polls = 0;
    observer.stop_requested = [&] { return ++polls == 4; };
    options_.num_workers = 1 + stops % 3;
    options_.record_every = 1h;
    try {
      const auto result = prepare_text(options_, byte_encoder(), observer);
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

// Runs prepare_text in a child that a signal ends after `microseconds`. True when it finished first.
bool run_and_kill(const PrepareTextOptions& options, unsigned microseconds) {
  const pid_t child = ::fork();
  if (child == 0) {
    TextEncoder encoder = byte_encoder();
    encoder.encode = [encode = encoder.encode](std::string_view text) {
      std::this_thread::sleep_for(20us);
      return encode(text);
    };
    try {
      prepare_text(options, encoder);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(2);
    }
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << "the restart failed";
  return WIFEXITED(status);
}

TEST_F(PrepareTextTest, killed_at_random_moments_and_restarted_nothing_is_lost_or_repeated) {
  const auto expected = contents_without_interruption();
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp)
  options_.record_every = 0ms;
  int kills = 0;
  for (int round = 0; round < 12; ++round) {
    while (!run_and_kill(options_, 500 + random() % 30000)) {
      ASSERT_LT(++kills, 2000) << "it does not get on";
    }
    ASSERT_EQ(contents(), expected) << "round " << round;
    fs::remove_all(options_.output);
  }
  EXPECT_GT(kills, 12);
}

TEST_F(PrepareTextTest, a_complete_folder_is_left_alone) {
  prepare_text(options_, byte_encoder());
  const auto before = contents();
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view) -> std::vector<int32_t> { throw std::logic_error("encoded again"); };
  const auto result = prepare_text(options_, encoder);
  EXPECT_TRUE(result.was_complete);
  EXPECT_EQ(result.documents, documents_.size());
  EXPECT_EQ(contents(), before);
  // The same text under other names is the same text.
  fs::rename(scratch_ / "c.jsonl", scratch_ / "d.jsonl");
  options_.inputs[2] = scratch_ / "d.jsonl";
  EXPECT_TRUE(prepare_text(options_, encoder).was_complete);
}

TEST_F(PrepareTextTest, leftovers_of_the_last_moment_are_removed) {
  prepare_text(options_, byte_encoder());
  const auto expected = contents();
  write_bytes(options_.output / "progress.json", "whatever");
  write_bytes(options_.output / "progress.lengths", "whatever");
  EXPECT_TRUE(prepare_text(options_, byte_encoder()).was_complete);
  EXPECT_EQ(contents(), expected);
}

class OtherJob : public PrepareTextTest, public testing::WithParamInterface<bool> {};

// Complete or interrupted, the folder belongs to its job.
TEST_P(OtherJob, in_the_same_folder_is_refused_and_the_difference_named) {
  PrepareTextObserver observer;
  observer.stop_requested = [] { return GetParam(); };
  try {
    prepare_text(options_, byte_encoder(), observer);
  } catch (const Stopped&) {
  }
  const auto before = contents();
  const auto expect_refused = [&](const PrepareTextOptions& options, const TextEncoder& encoder,
                                  const char* what) {
    const auto message = error_of<UsageError>([&] { prepare_text(options, encoder); });
    EXPECT_NE(message.find(what), message.npos) << message;
    EXPECT_NE(message.find(options_.output.string()), message.npos) << message;
    EXPECT_EQ(contents(), before);
  };
  TextEncoder encoder = byte_encoder();
  encoder.tokenizer_hash = "f";
  expect_refused(options_, encoder, "another tokenizer");
  PrepareTextOptions fewer = options_;
  fewer.inputs.pop_back();
  expect_refused(fewer, byte_encoder(), "3 files of text, not 2");
  PrepareTextOptions swapped = options_;
  std::swap(swapped.inputs[0], swapped.inputs[1]);
  expect_refused(swapped, byte_encoder(), "file 1 was a.jsonl");
  write_bytes(scratch_ / "c.jsonl", "{\"text\": \"other\"}\n");
  expect_refused(options_, byte_encoder(), "file 3 was c.jsonl");
}

INSTANTIATE_TEST_SUITE_P(CompleteOrInterrupted, OtherJob, testing::Bool());

TEST_F(PrepareTextTest, a_folder_of_other_things_is_left_untouched) {
  fs::create_directory(options_.output);
  write_bytes(options_.output / "thesis.tex", "years of work");
  write_bytes(options_.output / ".tmp-other", "somebody else's");
  const auto before = contents();
  EXPECT_NE(error_of<UsageError>([&] { prepare_text(options_, byte_encoder()); }).find("holds other files"),
            std::string::npos);
  EXPECT_EQ(contents(), before);
}

TEST_F(PrepareTextTest, two_processes_cannot_write_one_folder) {
  PrepareTextObserver observer;
  bool tried = false;
  observer.progress = [&](const PrepareTextProgress&) {
    if (std::exchange(tried, true)) return;
    EXPECT_NE(error_of<UsageError>([&] { prepare_text(options_, byte_encoder()); }).find("another"),
              std::string::npos);
  };
  prepare_text(options_, byte_encoder(), observer);
  EXPECT_TRUE(tried);
  EXPECT_EQ(all_tokens(TokenStream::open(options_.output)), byte_ids(documents_));
}

TEST_F(PrepareTextTest, the_first_bad_line_is_named_and_mended_text_starts_anew) {
  const std::string good = read_file(scratch_ / "a.jsonl");
  const auto lines = std::count(good.begin(), good.end(), '\n');
  write_bytes(scratch_ / "a.jsonl", good + "{broken\n{\"text\": 7}\n");
  options_.num_workers = 5;
  for (int i = 0; i < 5; ++i) {
    const auto message = error_of<DataError>([&] { prepare_text(options_, byte_encoder()); });
    EXPECT_NE(message.find("a.jsonl: line " + std::to_string(lines + 1) + ": invalid JSON"), message.npos)
        << message;
  }
  write_bytes(scratch_ / "a.jsonl", good);
  EXPECT_THROW(prepare_text(options_, byte_encoder()), UsageError);
}

TEST_F(PrepareTextTest, missing_input_leaves_no_folder_behind) {
  options_.inputs.push_back(scratch_ / "no.jsonl");
  EXPECT_NE(error_of<DataError>([&] { prepare_text(options_, byte_encoder()); }).find("no.jsonl"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(options_.output));
}

TEST_F(PrepareTextTest, damaged_unfinished_work_is_named) {
  PrepareTextObserver observer;
  int polls = 0;
  observer.stop_requested = [&] { return ++polls == 20; };
  EXPECT_THROW(prepare_text(options_, byte_encoder(), observer), Stopped);
  for (const char* name : {"progress.json", "progress.lengths", "tokens.bin"}) {
    const std::string bytes = read_file(options_.output / name);
    std::string damaged = bytes;
    damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 1);
    for (const std::string& content : {damaged, bytes.substr(0, bytes.size() - 1)}) {
      write_bytes(options_.output / name, content);
      const auto message = error_of<DataError>([&] { prepare_text(options_, byte_encoder()); });
      EXPECT_NE(message.find(name), message.npos) << message;
    }
    write_bytes(options_.output / name, bytes);
  }
  prepare_text(options_, byte_encoder());
  EXPECT_EQ(all_tokens(TokenStream::open(options_.output)), byte_ids(documents_));
}

TEST_F(PrepareTextTest, a_disk_that_fills_up_loses_nothing) {
  const auto expected = contents_without_interruption();
  options_.record_every = 0ms;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{6000, 6000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      prepare_text(options_, byte_encoder());
    } catch (const DataError& error) {
      ::_exit(std::string(error.what()).find(options_.output.string()) != std::string::npos ? 3 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_GT(prepare_text(options_, byte_encoder()).resumed_documents, 0U);
  EXPECT_EQ(contents(), expected);
}

TEST_F(PrepareTextTest, ids_outside_the_vocabulary_are_refused) {
  EXPECT_NE(
      error_of<DataError>([&] { prepare_text(options_, byte_encoder(100)); }).find("outside the vocabulary"),
      std::string::npos);
}

}  // namespace
}  // namespace dtopp
