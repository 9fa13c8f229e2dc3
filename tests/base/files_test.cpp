#include "dtopp/base/files.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "tests/base/scratch_directory.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
  return text;
}

TEST(OutputFile, writes_every_byte_whatever_the_sizes_of_the_pieces) {
  ScratchDirectory scratch;
  const auto text = pattern((size_t{3} << 20) + 17);
  for (const size_t piece :
       {size_t{1} << 20, (size_t{1} << 20) - 1, (size_t{1} << 20) + 1, size_t{4096}, size_t{70001}}) {
    Hasher hasher;
    OutputFile file(scratch / "file", &hasher);
    for (size_t i = 0; i < text.size(); i += piece) file.write(std::string_view(text).substr(i, piece));
    EXPECT_EQ(file.size(), text.size());
    file.sync_and_close();
    EXPECT_EQ(content_of(scratch / "file"), text) << piece;
    EXPECT_EQ(hasher.hexdigest(), hash_file(scratch / "file"));
  }
}

TEST(OutputFile, truncates_what_was_there) {
  ScratchDirectory scratch;
  std::ofstream(scratch / "file") << "something longer";
  OutputFile file(scratch / "file");
  file.write("short");
  file.sync_and_close();
  EXPECT_EQ(content_of(scratch / "file"), "short");
}

TEST(OutputFile, reports_a_full_device_with_the_path_and_what_to_do) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  OutputFile file("/dev/full");
  EXPECT_EQ(error_of<DataError>([&] { file.write(pattern(size_t{2} << 20)); }),
            "/dev/full: cannot write: No space left on device; free space there or choose another directory");
}

TEST(OutputFile, reports_a_full_device_also_for_what_is_still_in_the_buffer) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  OutputFile file("/dev/full");
  file.write("a few bytes");
  EXPECT_THAT(error_of<DataError>([&] { file.sync_and_close(); }), HasSubstr("No space left on device"));
}

TEST(OutputFile, that_cannot_be_created_names_the_path) {
  ScratchDirectory scratch;
  EXPECT_THAT(error_of<DataError>([&] { OutputFile(scratch / "absent/file"); }),
              StartsWith((scratch / "absent/file").string() + ": cannot create: No such file"));
}

TEST(ReadFile, gives_the_whole_file_up_to_the_limit) {
  ScratchDirectory scratch;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}, (size_t{2} << 20) + 3}) {
    std::ofstream(scratch / "file", std::ios::binary) << pattern(size);
    EXPECT_EQ(read_file(scratch / "file"), pattern(size));
    EXPECT_EQ(read_file(scratch / "file", size), pattern(size));
    if (size == 0) continue;
    EXPECT_THAT(error_of<DataError>([&] { read_file(scratch / "file", size - 1); }),
                HasSubstr("larger than"));
  }
}

TEST(ReadFile, stops_at_the_limit_where_the_size_is_not_known) {
  if (!fs::exists("/proc/self/maps")) GTEST_SKIP() << "no /proc, whose files have the size 0";
  EXPECT_THAT(error_of<DataError>([] { read_file("/proc/self/maps", 10); }),
              HasSubstr("larger than the 10 bytes"));
}

TEST(ReadFile, reports_what_cannot_be_read) {
  ScratchDirectory scratch;
  EXPECT_THAT(error_of<DataError>([&] { read_file(scratch / "absent"); }), HasSubstr("No such file"));
}

TEST(WriteFileAtomically, replaces_the_file_and_leaves_nothing_else) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "file", "first");
  write_file_atomically(scratch / "file", "second");
  EXPECT_EQ(content_of(scratch / "file"), "second");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("file"));
}

TEST(WriteFileAtomically, that_fails_leaves_what_was_there) {
  ScratchDirectory scratch;
  fs::create_directories(scratch / "taken/by/a/directory");
  EXPECT_THAT(error_of<DataError>([&] { write_file_atomically(scratch / "taken", "text"); }),
              AllOf(StartsWith((scratch / "taken").string() + ": cannot "), Not(HasSubstr(".tmp-"))));
  EXPECT_THAT(error_of<DataError>([&] { write_file_atomically(scratch / "absent/file", "text"); }),
              AllOf(StartsWith((scratch / "absent/file").string() + ": cannot "), Not(HasSubstr(".tmp-"))));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("taken"));
}

TEST(WriteFileAtomically, whose_writer_fails_leaves_what_was_there) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "file", "first");
  const auto half = [](OutputFile& file) {
    file.write("second, ha");
    throw DataError("half way");
  };
  EXPECT_THROW(write_file_atomically(scratch / "file", half), DataError);
  EXPECT_EQ(content_of(scratch / "file"), "first");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("file"));
}

void fill_two(const fs::path& directory) {
  fs::create_directory(directory / "nested");
  std::ofstream(directory / "nested/a") << "a";
  write_file_atomically(directory / "b", "b");
}

TEST(WriteDirectoryAtomically, makes_the_directory_with_all_it_holds) {
  ScratchDirectory scratch;
  for (const auto* const name : {"made", "with_slash/"}) write_directory_atomically(scratch / name, fill_two);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("made", "with_slash"));
  EXPECT_THAT(names_in(scratch / "with_slash"), ElementsAre("b", "nested"));
  EXPECT_EQ(content_of(scratch / "made/nested/a"), "a");
}

TEST(WriteDirectoryAtomically, leaves_nothing_when_filling_fails) {
  ScratchDirectory scratch;
  EXPECT_THROW(write_directory_atomically(scratch / "made",
                                          [](const fs::path& directory) {
                                            fill_two(directory);
                                            throw DataError("out of luck");
                                          }),
               DataError);
  EXPECT_TRUE(names_in(scratch.path()).empty());
}

TEST(WriteDirectoryAtomically, touches_an_existing_directory_only_to_replace_it) {
  ScratchDirectory scratch;
  fs::create_directories(scratch / "made/old");
  EXPECT_THAT(error_of<DataError>([&] { write_directory_atomically(scratch / "made", fill_two); }),
              HasSubstr("File exists"));
  EXPECT_THAT(names_in(scratch / "made"), ElementsAre("old"));
  write_directory_atomically(scratch / "made", fill_two, /*replace=*/true);
  EXPECT_THAT(names_in(scratch / "made"), ElementsAre("b", "nested"));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("made"));
}

TEST(PutBackReplaced, gives_the_name_back_unless_the_new_one_has_it) {
  ScratchDirectory scratch;
  for (const auto* const name : {".replaced-lost", ".replaced-done", "done"})
    write_directory_atomically(scratch / name, fill_two);
  write_file_atomically(scratch / "done/b", "new");
  put_back_replaced(scratch.path());
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("done", "lost"));
  EXPECT_EQ(content_of(scratch / "done/b"), "new");
  EXPECT_THAT(names_in(scratch / "lost"), ElementsAre("b", "nested"));
}

TEST(RemoveDurably, removes_files_and_directories_and_reports_absent_ones) {
  ScratchDirectory scratch;
  write_directory_atomically(scratch / "made", fill_two);
  write_file_atomically(scratch / "file", "text");
  remove_durably(scratch / "made");
  remove_durably(scratch / "file");
  EXPECT_TRUE(names_in(scratch.path()).empty());
  EXPECT_THROW(remove_durably(scratch / "absent"), DataError);
}

TEST(MakeDirectories, creates_missing_parents_and_takes_existing_ones) {
  ScratchDirectory scratch;
  make_directories(scratch / "a/b/c");
  make_directories(scratch / "a/b/c");
  EXPECT_TRUE(fs::is_directory(scratch / "a/b/c"));
  write_file_atomically(scratch / "file", "");
  EXPECT_THAT(error_of<DataError>([&] { make_directories(scratch / "file/d"); }),
              HasSubstr("Not a directory"));
}

TEST(MakeDirectories, reports_a_parent_that_cannot_be_written) {
  if (!fs::is_directory("/sys/kernel")) GTEST_SKIP() << "no /sys, which nobody may write to";
  EXPECT_THAT(error_of<DataError>([&] { make_directories("/sys/kernel/run/checkpoints"); }),
              AllOf(StartsWith("/sys/kernel/run: cannot create the directory: "),
                    HasSubstr("check its permissions")));
}

TEST(MappedFile, shows_the_bytes_of_the_file) {
  ScratchDirectory scratch;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100000}}) {
    std::ofstream(scratch / "file", std::ios::binary) << pattern(size);
    MappedFile first(scratch / "file");
    const MappedFile file(std::move(first));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()),
              pattern(size));
  }
}

TEST(MappedFile, reports_what_cannot_be_read) {
  ScratchDirectory scratch;
  EXPECT_THAT(error_of<DataError>([&] { MappedFile{scratch / "absent"}; }), HasSubstr("No such file"));
}

TEST(Readers, refuse_what_is_no_regular_file_without_waiting_for_it) {
  ScratchDirectory scratch;
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  for (const auto& path : {scratch / "pipe", scratch.path(), fs::path("/dev/zero")}) {
    const std::string message = path.string() + ": not a regular file; check the path";
    EXPECT_EQ(error_of<DataError>([&] { read_file(path); }), message);
    EXPECT_EQ(error_of<DataError>([&] { hash_file(path); }), message);
    EXPECT_EQ(error_of<DataError>([&] { MappedFile{path}; }), message);
  }
}

// R11: two processes never write one run directory.
TEST(DirectoryLock, shuts_out_other_holders_until_it_is_released) {
  ScratchDirectory scratch;
  std::optional<DirectoryLock> lock(scratch.path());
  EXPECT_THAT(error_of<UsageError>([&] { DirectoryLock{scratch.path()}; }),
              StartsWith("another dtopp process is writing " + scratch.path().string()));
  lock.reset();
  EXPECT_NO_THROW(DirectoryLock{scratch.path()});
}

TEST(DirectoryLock, shuts_out_another_process_and_ends_with_its_holder) {
  ScratchDirectory scratch;
  int to_parent[2];
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    DirectoryLock lock(scratch.path());
    (void)!::write(to_parent[1], "x", 1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  EXPECT_THROW(DirectoryLock{scratch.path()}, UsageError);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(DirectoryLock{scratch.path()});
  ::close(to_parent[0]);
  ::close(to_parent[1]);
}

TEST(DirectoryLock, needs_a_directory_it_can_write) {
  ScratchDirectory scratch;
  EXPECT_THAT(error_of<DataError>([&] { DirectoryLock{scratch / "absent"}; }), HasSubstr("cannot lock"));
}

}  // namespace
}  // namespace dtopp
