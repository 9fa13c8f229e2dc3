#include "dtopp/data/files/verified_files.h"

#include <chrono>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "dtopp/base/json.h"
#include "dtopp/data/text/token_file.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

int64_t nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

std::string identity(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

class VerifiedFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_bytes(scratch_ / "text.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"xyz\"}\n");
    prepare_text({{scratch_ / "text.jsonl"}, folder_});
    std::this_thread::sleep_for(20ms);  // more than a clock tick, so a later change gets another time
  }

  // A record that lists all files, with their present identities, as verified.
  nlohmann::ordered_json identities() const {
    nlohmann::ordered_json about;
    for (const auto& [name, unused] : files_of_manifest()) {
      struct stat status {};
      EXPECT_EQ(::stat((folder_ / name).c_str(), &status), 0);
      about[name] = identity({static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino),
                              status.st_size, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)});
    }
    return about;
  }
  ManifestFiles files_of_manifest() const { return read_manifest(folder_, kTokenDataFormat).files; }
  void write_record(const nlohmann::ordered_json& identities, const ManifestFiles& files) const {
    write_bytes(record_, format_manifest({"dtopp verified files 2", dump_json(identities), files}));
  }
  void write_record() const { write_record(identities(), files_of_manifest()); }

  void flip(const char* name = "tokens.bin") const {
    std::string bytes = read_file(folder_ / name);
    bytes[3] = static_cast<char>(bytes[3] ^ 1);
    write_bytes(folder_ / name, bytes);
  }
  // Whether an open without --verify finds the flip and names its file.
  bool notices(const char* name = "tokens.bin") const {
    try {
      TokenStream::open(folder_);
      return false;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find((folder_ / name).string()), std::string::npos) << error.what();
      return true;
    }
  }

  ScratchDirectory scratch_;
  fs::path folder_ = scratch_ / "tokens";
  fs::path record_ = folder_ / ".verified.json";
};

// A flip by the device: nothing is written, so the file's times do not change.
TEST_F(VerifiedFiles, what_is_known_is_read_again_only_to_verify_all) {
  flip();
  write_record();
  EXPECT_EQ(TokenStream::open(folder_).size(), 7U);
  expect_named(folder_, (folder_ / "tokens.bin").string(), "damaged", Verify::kAll);
}

TEST_F(VerifiedFiles, any_difference_from_the_record_is_noticed) {
  flip();
  const std::string known = identities()["tokens.bin"];
  std::istringstream text(known);
  std::vector<int64_t> numbers;
  for (int64_t number = 0; text >> number;) numbers.push_back(number);
  ASSERT_EQ(identity(numbers), known);
  for (size_t field = 0; field <= numbers.size(); ++field) {
    for (const int64_t difference : {-1, 1}) {
      auto other = numbers;
      if (field < other.size())
        other[field] += difference;
      else
        other.pop_back();
      auto about = identities();
      about["tokens.bin"] = identity(other);
      write_record(about, files_of_manifest());
      EXPECT_TRUE(notices()) << field;
    }
  }
  ManifestFiles files = files_of_manifest();
  files["tokens.bin"].xxh3_128[0] ^= 1;
  write_record(identities(), files);
  EXPECT_TRUE(notices());
  files.erase("tokens.bin");
  write_record(identities(), files);
  EXPECT_TRUE(notices());
}

TEST_F(VerifiedFiles, an_edit_with_its_time_set_back_is_noticed) {
  struct stat before {};
  ASSERT_EQ(::stat((folder_ / "tokens.bin").c_str(), &before), 0);
  write_record();
  flip();
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder_ / "tokens.bin").c_str(), times, 0), 0);
  struct stat after {};
  ASSERT_EQ(::stat((folder_ / "tokens.bin").c_str(), &after), 0);
  ASSERT_EQ(nanoseconds(after.st_mtim), nanoseconds(before.st_mtim));
  EXPECT_TRUE(notices());
}

TEST_F(VerifiedFiles, a_replaced_file_and_a_new_manifest_are_noticed) {
  write_record();
  fs::copy_file(folder_ / "tokens.bin", folder_ / "copy");
  fs::rename(folder_ / "copy", folder_ / "tokens.bin");
  flip();
  EXPECT_TRUE(notices());
  flip();
  ManifestFiles files = files_of_manifest();
  files["tokenizer.json"].xxh3_128[0] ^= 1;
  const Manifest manifest = read_manifest(folder_, kTokenDataFormat);
  write_bytes(folder_ / "manifest.json", format_manifest({manifest.format, manifest.about, files}));
  EXPECT_TRUE(notices("tokenizer.json"));
}

TEST_F(VerifiedFiles, files_that_have_settled_are_remembered) {
  TokenStream::open(folder_);
  EXPECT_FALSE(fs::exists(record_)) << "a change within the same tick of the clock would be missed";
  std::this_thread::sleep_for(2100ms);
  TokenStream::open(folder_);
  const std::string record = read_file(record_);
  write_record();
  EXPECT_EQ(record, read_file(record_));
  fs::remove(record_);
  TokenStream::open(folder_, Verify::kAll);
  EXPECT_EQ(record, read_file(record_));
  // After one more file changes, the other files stay known.
  flip();
  flip();
  TokenStream::open(folder_);
  auto about = identities();
  about.erase("tokens.bin");
  ManifestFiles files = files_of_manifest();
  files.erase("tokens.bin");
  const std::string changed = read_file(record_);
  write_record(about, files);
  EXPECT_EQ(changed, read_file(record_));
}

TEST_F(VerifiedFiles, without_a_place_for_the_record_all_is_read_each_time) {
  std::this_thread::sleep_for(2100ms);
  write_bytes(record_, "somebody else's");
  EXPECT_EQ(TokenStream::open(folder_).size(), 7U);
  EXPECT_EQ(read_file(record_), "somebody else's");
  fs::remove(record_);
  fs::create_directories(record_ / "nested");
  EXPECT_EQ(TokenStream::open(folder_).size(), 7U);
  flip();
  EXPECT_TRUE(notices());
}

}  // namespace
}  // namespace dtopp::data
