#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::temporary_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::string kDigits = ".0123456789abcdef";

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  return names;
}

void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

TEST(TemporaryName, is_another_each_time_and_known_by_its_form) {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) names.insert(temporary_sibling("a/b.json").filename().string());
  EXPECT_EQ(names.size(), 100U);
  for (const auto& name : names) {
    EXPECT_TRUE(is_temporary_name(name) && is_temporary_name_of("b.json", name)) << name;
    EXPECT_FALSE(is_temporary_name_of("a", name) || is_temporary_name_of("", name)) << name;
  }
  EXPECT_EQ(temporary_sibling("a/b/").parent_path(), "a");
  for (const auto* const name :
       {".tmp-", ".tmp-x", ".tmp-.0123456789abcdef", "x.0123456789abcdef", ".tmp-x.0123456789ABCDEF",
        ".tmp-x.0123456789abcde", ".tmp-x-0123456789abcdef", ".tmp-x.0123456789abcdefg"})
    EXPECT_FALSE(is_temporary_name(name)) << name;
}

// The link has the name that dtopp once gave to every temporary file of "out.json".
TEST(WriteFileAtomically, does_not_follow_a_planted_link) {
  ScratchDirectory scratch;
  put(scratch / "victim", "precious");
  fs::create_symlink(scratch / "victim", scratch / ".tmp-out.json");
  write_file_atomically(scratch / "out.json", "new");
  EXPECT_EQ(read_file(scratch / "victim"), "precious");
  EXPECT_EQ(read_file(scratch / "out.json"), "new");
  EXPECT_TRUE(fs::is_symlink(scratch / ".tmp-out.json"));
}

TEST(OutputFile, refuses_links_and_where_asked_to_whatever_is_there) {
  ScratchDirectory scratch;
  put(scratch / "victim", "precious");
  fs::create_symlink(scratch / "victim", scratch / "link");
  EXPECT_THAT(error_of<DataError>([&] { OutputFile(scratch / "link"); }), HasSubstr("cannot create"));
  EXPECT_THAT(error_of<DataError>([&] { AppendFile(scratch / "link", 0); }), HasSubstr("cannot create"));
  EXPECT_THAT(
      error_of<DataError>([&] { OutputFile(scratch / "victim", nullptr, OutputFile::Existing::kRefused); }),
      HasSubstr("File exists"));
  EXPECT_EQ(read_file(scratch / "victim"), "precious");
}

TEST(WriteFileAtomically, of_two_writers_at_once_each_is_whole) {
  ScratchDirectory scratch;
  const auto path = scratch / "file";
  write_file_atomically(path, [&](OutputFile& first) {
    first.write("first, ");
    write_file_atomically(path, "second");
    EXPECT_EQ(read_file(path), "second");
    first.write("whole");
  });
  EXPECT_EQ(read_file(path), "first, whole");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("file"));
}

// Larger than any buffer, so each write takes several calls.
void write_again_and_again(const fs::path& path, char letter) {
  for (int i = 0; i < 40; ++i) write_file_atomically(path, std::string(size_t{3} << 20, letter));
}

TEST(WriteFileAtomically, of_many_processes_shows_a_reader_one_of_them) {
  ScratchDirectory scratch;
  const auto path = scratch / "file";
  write_file_atomically(path, "z");
  std::vector<pid_t> children;
  for (const char letter : {'a', 'b', 'c'}) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      write_again_and_again(path, letter);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  for (int i = 0; i < 40; ++i) {
    const std::string text = read_file(path);
    EXPECT_EQ(text, std::string(text.size(), text.front()));
    EXPECT_TRUE(text == "z" || text.size() == size_t{3} << 20);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("file"));
}

TEST(WriteFileAtomically, removes_what_dead_writers_left_and_nothing_else) {
  ScratchDirectory scratch;
  put(scratch / (".tmp-file" + kDigits), "half");
  put(scratch / (".tmp-file.00000000000000ff"), "being written");
  put(scratch / (".tmp-other" + kDigits), "half of another");
  put(scratch / ".tmp-file", "somebody's");
  fs::create_symlink(scratch / ".tmp-file", scratch / ".tmp-file.00000000000000aa");
  const int writer = ::open((scratch / ".tmp-file.00000000000000ff").c_str(), O_RDONLY);
  EXPECT_TRUE(hold_temporary(writer));
  write_file_atomically(scratch / "file", "text");
  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre("file", ".tmp-file.00000000000000ff", ".tmp-other" + kDigits, ".tmp-file",
                                   ".tmp-file.00000000000000aa"));
  ::close(writer);
  write_file_atomically(scratch / "file", "text");
  EXPECT_FALSE(fs::exists(scratch / ".tmp-file.00000000000000ff"));
}

TEST(HoldTemporary, tells_a_writer_whose_file_was_taken_for_abandoned) {
  ScratchDirectory scratch;
  const auto path = scratch / (".tmp-file" + kDigits);
  put(path, "");
  const int writer = ::open(path.c_str(), O_RDONLY);
  remove_abandoned(scratch / "file");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(hold_temporary(writer));
  ::close(writer);
}

TEST(WriteFileAtomically, does_not_put_a_file_in_the_place_of_a_pipe) {
  ScratchDirectory scratch;
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of<DataError>([&] { write_file_atomically(scratch / "pipe", "text"); }),
              HasSubstr("not a regular file"));
  EXPECT_TRUE(fs::is_fifo(scratch / "pipe"));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("pipe"));
}

TEST(WriteDirectoryAtomically, leaves_directories_that_are_not_its_own) {
  ScratchDirectory scratch;
  fs::create_directory(scratch / ".tmp-made");
  put(scratch / ".tmp-made/thesis.tex", "years of work");
  write_directory_atomically(scratch / "made", [](const fs::path& directory) { put(directory / "a", "a"); });
  remove_durably(scratch / "made");
  EXPECT_EQ(read_file(scratch / ".tmp-made/thesis.tex"), "years of work");
}

TEST(RemoveLeftovers, removes_what_dtopp_made_and_nothing_else) {
  ScratchDirectory scratch;
  fs::create_directories(scratch / (".tmp-step-00000009" + kDigits) / "nested");
  put(scratch / (".tmp-config.yaml" + kDigits), "half");
  fs::create_directory(scratch / ".tmp-mine");
  put(scratch / ".tmp-mine/thesis.tex", "years of work");
  put(scratch / ".tmp-notes", "mine");
  fs::create_directory_symlink(scratch / ".tmp-mine", scratch / (".tmp-link" + kDigits));
  remove_leftovers(scratch.path());
  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre(".tmp-mine", ".tmp-notes", ".tmp-link" + kDigits));
  EXPECT_EQ(read_file(scratch / ".tmp-mine/thesis.tex"), "years of work");
}

}  // namespace
}  // namespace dtopp::temporary_test
