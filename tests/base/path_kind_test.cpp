#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/files.h"
#include "tests/base/forbidden.h"
#include "tests/base/scratch_directory.h"

namespace dtopp {
namespace {

TEST(PathKind, tells_files_directories_and_nothing_apart) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "file", "text");
  std::filesystem::create_symlink("file", scratch / "link");
  EXPECT_EQ(path_kind(scratch / "file"), PathKind::kFile);
  EXPECT_EQ(path_kind(scratch / "link"), PathKind::kFile);
  EXPECT_EQ(path_kind(scratch.path()), PathKind::kDirectory);
  EXPECT_EQ(path_kind("/dev/null"), PathKind::kOther);
  EXPECT_EQ(path_kind(scratch / "absent"), PathKind::kNothing);
  EXPECT_EQ(path_kind(scratch / "file/below"), PathKind::kNothing);
}

TEST(PathKind, gives_the_systems_reason_where_it_cannot_tell) {
  ScratchDirectory scratch;
  std::filesystem::create_symlink("loop", scratch / "loop");
  EXPECT_THAT(error_of<DataError>([&] { path_kind(scratch / "loop/file"); }),
              testing::HasSubstr("loop/file: cannot read its status: Too many levels of symbolic links"));
  const ForbiddenDirectory forbidden(scratch.path());
  EXPECT_THAT(error_of<DataError>([&] { path_kind(scratch / "absent"); }),
              testing::HasSubstr("absent: cannot read its status: Permission denied"));
}

}  // namespace
}  // namespace dtopp
