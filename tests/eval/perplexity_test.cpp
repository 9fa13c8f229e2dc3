#include "dtopp/eval/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::eval {
namespace {

using testing::HasSubstr;

std::vector<int64_t> ids_of(const EvaluationText& text) {
  std::vector<int64_t> ids(text.size());
  text.read(0, ids);
  return ids;
}

TEST(EvaluationText, is_the_ids_of_any_text_file_closed_by_the_end_of_text) {
  ScratchDirectory scratch;
  const std::string text = "# A title\n\nAnd some words.\n";
  std::vector<int64_t> expected;
  for (const int32_t id : tasks::shipped_tokenizer().encode(text)) expected.push_back(id);
  expected.push_back(tasks::shipped_tokenizer().end_of_text());
  for (const std::string name : {"README.md", "a.txt", "plain"}) {
    write_file_atomically(scratch / name, text);
    EXPECT_EQ(ids_of(EvaluationText(scratch / name, tasks::shipped_tokenizer())), expected) << name;
  }
}

TEST(EvaluationText, of_token_data_holds_their_ids) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "ids.npy", std::string("\5\0\7\0\x2a\0", 6));
  const EvaluationText text(scratch / "ids.npy", 64);
  EXPECT_TRUE(is_token_data(scratch / "ids.npy") && is_token_data(scratch.path()));
  EXPECT_FALSE(is_token_data(scratch / "ids.txt"));
  EXPECT_EQ(ids_of(text), (std::vector<int64_t>{5, 7, 42}));
  EXPECT_TRUE(text.beginning(3).equal(at::tensor(std::vector<int64_t>{5, 7, 42}, at::kLong).view({1, 3})));
  EXPECT_THROW(EvaluationText(scratch / "ids.npy", 42), UsageError);
}

TEST(EvaluationText, begins_with_an_id_in_front_of_the_text) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "ids.npy", std::string("\5\0\7\0\x2a\0", 6));
  EvaluationText text(scratch / "ids.npy", 64);
  text.begin_with(9);
  EXPECT_EQ(ids_of(text), (std::vector<int64_t>{9, 5, 7, 42}));
  std::vector<int64_t> last(2);
  text.read(2, last);
  EXPECT_EQ(last, (std::vector<int64_t>{7, 42}));
}

TEST(EvaluationText, that_cannot_be_looked_at_gives_the_systems_reason) {
  ScratchDirectory scratch;
  std::filesystem::create_symlink("loop", scratch / "loop");
  EXPECT_THAT(error_of<DataError>([&] { is_token_data(scratch / "loop"); }),
              HasSubstr("Too many levels of symbolic links"));
  EXPECT_THAT(error_of<DataError>([&] { EvaluationText(scratch / "absent", tasks::shipped_tokenizer()); }),
              HasSubstr("No such file"));
}

}  // namespace

}  // namespace dtopp::eval
