#include <gtest/gtest.h>

#include "dtopp/base/hash.h"

namespace dtopp {
namespace {

// The examples of FIPS 180-2, appendix B.
TEST(Sha256, gives_the_digests_of_the_standard) {
  Sha256 abc;
  abc.update("a");
  abc.update("");
  abc.update("bc");
  EXPECT_EQ(abc.hexdigest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 million;
  const std::string thousand(1000, 'a');
  for (int i = 0; i < 1000; ++i) million.update(thousand);
  EXPECT_EQ(million.hexdigest(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(Sha256().hexdigest(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// `printf ... | git hash-object --stdin` prints them.
TEST(GitBlobId, is_the_one_that_git_gives) {
  EXPECT_EQ(git_blob_id("what is up, doc?"), "bd9dbf5aae1a3862dd1526723246b20206e5fc37");
  EXPECT_EQ(git_blob_id(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

}  // namespace
}  // namespace dtopp
