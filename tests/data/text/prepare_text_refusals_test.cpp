// Tests the input that preparing text refuses and the files that a failure leaves.
#include <new>
#include <utility>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/data/text/prepare_text_fixture.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class OtherJob : public PrepareTextTest, public testing::WithParamInterface<bool> {};

// A complete or interrupted folder belongs to its job.
TEST_P(OtherJob, in_the_same_folder_is_refused_and_the_difference_named) {
  try {
    prepare_text(options_, ByteEncoder(), GetParam() ? 1 : 1 << 30);
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
  ByteEncoder encoder;
  encoder.tokenizer_hash = "f";
  expect_refused(options_, encoder, "tokenizer_hash");
  PrepareTextOptions divided = options_;
  divided.split_on = "\n";
  expect_refused(divided, ByteEncoder(), "split_on");
  PrepareTextOptions fewer = options_;
  fewer.inputs.pop_back();
  expect_refused(fewer, ByteEncoder(), "3 sources, not 2");
  PrepareTextOptions swapped = options_;
  std::swap(swapped.inputs[0], swapped.inputs[1]);
  expect_refused(swapped, ByteEncoder(), "source 1 was a.jsonl");
  if (GetParam()) return;  // an unfinished folder starts again
  write_bytes(scratch_ / "c.jsonl", "{\"text\": \"other\"}\n");
  expect_refused(options_, ByteEncoder(), "source 3 was c.jsonl");
}

INSTANTIATE_TEST_SUITE_P(CompleteOrInterrupted, OtherJob, testing::Bool());

struct LargeEncoder : ByteEncoder {
  std::vector<int32_t> encode(std::string_view /*text*/) const override { throw std::bad_alloc(); }
};

TEST_F(PrepareTextTest, names_the_file_at_work_when_memory_runs_out) {
  EXPECT_EQ(error_of<ResourceError>([&] { prepare_text(options_, LargeEncoder()); }),
            (scratch_ / "a.jsonl").string() + ": out of memory: lower --workers, or split the file");
}

// A folder with file names that dtopp also uses does not belong to dtopp.
TEST_F(PrepareTextTest, a_folder_of_other_things_is_left_untouched) {
  const std::string of_another = R"({"format": "other 1", "files": {}})";
  const std::vector<std::map<std::string, std::string>> folders = {
      {{"thesis.tex", "years of work"}, {".tmp-other", "somebody else's"}},
      {{"progress.json", R"({"chapters": 3})"}},
      {{"progress.json", of_another}, {".tmp-draft", "unsaved"}, {".tmp-tokens.idx", "mine"}},
      {{"progress.json", "whatever"}, {"progress.lengths", "whatever"}, {"tokens.bin", "coins"}},
      {{"manifest.json", of_another}},
      {{"manifest.json", R"({"files": ["a"]})"}, {"progress.json", "whatever"}, {".tmp-draft", "unsaved"}},
      {{".tmp-progress.json", "somebody else's"}},
  };
  for (const auto& folder : folders) {
    fs::create_directory(options_.output);
    for (const auto& [name, bytes] : folder) write_bytes(options_.output / name, bytes);
    const auto message = error_of<UsageError>([&] { prepare_text(options_); });
    EXPECT_NE(message.find("holds other files"), message.npos) << message;
    EXPECT_EQ(message.find("delete"), message.npos) << message;
    EXPECT_EQ(contents(), folder);
    fs::remove_all(options_.output);
  }
}

TEST_F(PrepareTextTest, other_files_beside_unfinished_or_complete_work_stay) {
  EXPECT_THROW(prepare_text(options_, ByteEncoder(), 20), Stopped);
  write_bytes(options_.output / ".tmp-draft", "unsaved");
  write_bytes(options_.output / "notes.txt", "mine");
  prepare_text(options_);
  write_bytes(options_.output / "progress.json", "of another program");
  write_bytes(options_.output / "progress.lengths", "of another program");
  const auto before = contents();
  EXPECT_TRUE(before.contains(".tmp-draft") && before.contains("notes.txt"));
  EXPECT_TRUE(prepare_text(options_).was_complete);
  EXPECT_EQ(contents(), before);
}

TEST_F(PrepareTextTest, a_first_record_that_was_never_finished_is_begun_again) {
  const auto expected = contents_without_interruption();
  EXPECT_THROW(prepare_text(options_, ByteEncoder(), 1), Stopped);
  const std::string record = read_file(options_.output / "progress.json");
  for (const size_t size : {size_t{0}, size_t{10}, record.size() / 2, record.size()}) {
    fs::remove_all(options_.output);
    fs::create_directory(options_.output);
    write_bytes(options_.output / ".tmp-progress.json.0123456789abcdef", record.substr(0, size));
    prepare_text(options_);
    EXPECT_EQ(contents(), expected) << size;
  }
}

TEST_F(PrepareTextTest, two_processes_cannot_write_one_folder) {
  const ByteEncoder encoder;
  TextPreparation first(options_, encoder);
  EXPECT_NE(error_of<UsageError>([&] { prepare_text(options_); }).find("another"), std::string::npos);
  while (first.next()) {
  }
  EXPECT_EQ(all_tokens(TokenStream::open(options_.output)), byte_ids(documents_));
}

TEST_F(PrepareTextTest, the_first_bad_line_is_named_and_mended_text_starts_again) {
  const auto expected = contents_without_interruption();
  const std::string good = read_file(scratch_ / "a.jsonl");
  const auto lines = std::count(good.begin(), good.end(), '\n');
  write_bytes(scratch_ / "a.jsonl", good + "{broken\n{\"text\": 7}\n");
  options_.num_workers = 5;
  for (int i = 0; i < 5; ++i) {
    const auto message = error_of<DataError>([&] { prepare_text(options_); });
    EXPECT_NE(message.find("a.jsonl: line " + std::to_string(lines + 1) + ": invalid JSON"), message.npos)
        << message;
  }
  options_.record_every = 0ms;
  EXPECT_THROW(prepare_text(options_), DataError);
  EXPECT_GT(fs::file_size(options_.output / "tokens.bin"), 0U);
  write_bytes(scratch_ / "a.jsonl", good);
  const auto result = prepare_text(options_);
  EXPECT_NE(result.restart_reason.find("source 1 was a.jsonl"), std::string::npos) << result.restart_reason;
  EXPECT_EQ(result.resumed_documents, 0U);
  EXPECT_EQ(contents(), expected);
}

// Nothing is lost if another job takes the folder.
TEST_F(PrepareTextTest, an_unfinished_folder_without_a_document_takes_any_job) {
  const auto expected = contents_without_interruption();
  const auto inputs = std::exchange(options_.inputs, {scratch_ / "empty.txt"});
  write_bytes(scratch_ / "empty.txt", "");
  EXPECT_THROW(prepare_text(options_), DataError);
  options_.inputs = inputs;
  EXPECT_EQ(prepare_text(options_).restart_reason, "");
  EXPECT_EQ(contents(), expected);
}

TEST_F(PrepareTextTest, text_without_a_document_is_refused) {
  write_bytes(scratch_ / "empty.txt", "");
  write_bytes(scratch_ / "blank.jsonl", "\n{\"text\": \"\", \"kind\": \"a\"}\n");
  options_.inputs = {scratch_ / "empty.txt"};
  EXPECT_EQ(error_of<DataError>([&] { prepare_text(options_); }),
            (scratch_ / "empty.txt").string() + ": no document has text; nothing to prepare");
  options_.inputs = {scratch_ / "blank.jsonl", scratch_ / "empty.txt"};
  EXPECT_EQ(error_of<DataError>([&] { prepare_text(options_); }),
            (scratch_ / "blank.jsonl").string() + " and 1 more: no document has text; nothing to prepare");
  EXPECT_FALSE(fs::exists(options_.output / "manifest.json"));
}

TEST_F(PrepareTextTest, an_error_of_the_encoder_is_named_by_file_and_line) {
  struct FailingEncoder : ByteEncoder {
    std::vector<int32_t> encode(std::string_view text) const override {
      if (text.starts_with("a file")) throw DataError("the text cannot be normalized");
      return ByteEncoder::encode(text);
    }
  };
  const auto message = error_of<DataError>([&] { prepare_text(options_, FailingEncoder()); });
  EXPECT_NE(message.find("b.txt: line 1: the text cannot be normalized"), message.npos) << message;
}

TEST_F(PrepareTextTest, a_separator_without_plain_text_or_that_is_no_text_is_refused) {
  const auto expect_refused = [&](const std::string& separator, const char* what) {
    options_.split_on = separator;
    const auto message = error_of<UsageError>([&] { prepare_text(options_); });
    EXPECT_NE(message.find(what), message.npos) << message;
    EXPECT_FALSE(fs::exists(options_.output));
  };
  expect_refused("\xff", "must be UTF-8");
  expect_refused(std::string(1025, '-'), "at most 1024 bytes");
  options_.inputs = {scratch_ / "a.jsonl", scratch_ / "c.jsonl"};
  expect_refused("--", "all inputs are JSON lines");
}

TEST_F(PrepareTextTest, missing_input_leaves_no_folder_behind) {
  options_.inputs.push_back(scratch_ / "no.jsonl");
  EXPECT_NE(error_of<DataError>([&] { prepare_text(options_); }).find("no.jsonl"), std::string::npos);
  EXPECT_FALSE(fs::exists(options_.output));
}

TEST_F(PrepareTextTest, damaged_unfinished_work_is_named) {
  EXPECT_THROW(prepare_text(options_, ByteEncoder(), 20), Stopped);
  for (const char* name : {"progress.json", "progress.lengths", "tokens.bin"}) {
    const std::string bytes = read_file(options_.output / name);
    std::string damaged = bytes;
    damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 1);
    for (const std::string& content : {damaged, bytes.substr(0, bytes.size() - 1)}) {
      write_bytes(options_.output / name, content);
      const auto message = error_of<DataError>([&] { prepare_text(options_); });
      EXPECT_NE(message.find(name), message.npos) << message;
      EXPECT_EQ(message.find("delete"), message.npos) << message;
    }
    // A file longer than recorded is checked before it is cut.
    write_bytes(options_.output / name, damaged + "more");
    EXPECT_THROW(prepare_text(options_), DataError);
    EXPECT_EQ(read_file(options_.output / name), damaged + "more");
    write_bytes(options_.output / name, bytes);
  }
  prepare_text(options_);
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
      prepare_text(options_);
    } catch (const DataError& error) {
      ::_exit(std::string(error.what()).find(options_.output.string()) != std::string::npos ? 3 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_GT(prepare_text(options_).resumed_documents, 0U);
  EXPECT_EQ(contents(), expected);
}

TEST_F(PrepareTextTest, ids_outside_the_vocabulary_are_refused) {
  EXPECT_NE(
      error_of<DataError>([&] { prepare_text(options_, ByteEncoder(100)); }).find("outside the vocabulary"),
      std::string::npos);
}

}  // namespace
}  // namespace dtopp::data
