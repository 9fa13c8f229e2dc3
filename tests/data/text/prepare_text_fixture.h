// A fixture with text files and the tokens prepared from them.
#pragma once

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "dtopp/data/text/prepare_text.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {

// Two JSONL files, some of whose lines are blank or have no text, with a plain text file between them.
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
    for (const auto& entry : std::filesystem::directory_iterator(options_.output))
      files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  }

  std::map<std::string, std::string> contents_without_interruption() {
    prepare_text(options_);
    auto files = contents();
    std::filesystem::remove_all(options_.output);
    return files;
  }

  ScratchDirectory scratch_;
  PrepareTextOptions options_;
  std::vector<std::string> documents_;
};

}  // namespace dtopp::data
