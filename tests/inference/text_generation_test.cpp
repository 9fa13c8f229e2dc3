#include "dtopp/inference/text_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::inference {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TextStream, gives_out_whole_characters_and_in_the_end_the_whole_text) {
  const std::string text = "caf\u00e9 \u6f22\u5b57 \U0001F642 \U00010348 end";
  TextStream stream(tasks::shipped_tokenizer());
  std::string streamed;
  size_t held_back = 0;
  for (const int32_t id : tasks::shipped_tokenizer().encode(text)) {
    const std::string more = stream.add(id);
    EXPECT_THAT(more, Not(HasSubstr("\uFFFD")));
    held_back += more.empty() ? 1 : 0;
    streamed += more;
  }
  EXPECT_EQ(streamed + stream.rest(), text);
  EXPECT_GT(held_back, 0);  // some characters of the text have several tokens
}

TEST(TextStream, does_not_wait_for_what_cannot_become_a_character) {
  const auto bytes = tasks::shipped_tokenizer().encode("\U00010348");  // four tokens, one per byte
  ASSERT_EQ(bytes.size(), 4);
  TextStream stream(tasks::shipped_tokenizer());
  std::string streamed;
  for (int i = 0; i < 8; ++i) streamed += stream.add(bytes[0]);
  EXPECT_THAT(streamed, HasSubstr("\uFFFD"));
  EXPECT_EQ(stream.rest(), "");
}

TEST(Prompts, are_the_lines_of_a_file_that_hold_something) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "prompts", "one\r\n\n\r\n two\nlast\r");
  EXPECT_EQ(read_prompts(scratch / "prompts"), (std::vector<std::string>{"one", " two", "last"}));
  write_file_atomically(scratch / "prompts", "\n\n");
  EXPECT_THAT(error_of<DataError>([&] { read_prompts(scratch / "prompts"); }), HasSubstr("holds no prompt"));
  EXPECT_THAT(error_of<DataError>([&] { read_prompts(scratch / "absent"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of<DataError>([&] { read_prompts(scratch.path()); }), HasSubstr("not a regular file"));
}

TEST(Prompts, leave_room_for_what_is_asked_for_or_what_the_model_can) {
  const std::string prompt = "The fog came down at noon, and";
  const auto length = static_cast<int64_t>(tasks::shipped_tokenizer().encode(prompt).size());
  const EncodedPrompts encoded =
      encode_prompts({prompt, "Nobody"}, tasks::shipped_tokenizer(), length + 5, 7);
  EXPECT_EQ(encoded.ids[0].size(), static_cast<size_t>(length));
  EXPECT_EQ(encoded.max_new_tokens, (std::vector<int64_t>{5, 7}));
  EXPECT_THAT(error_of<UsageError>([&] { encode_prompts({prompt}, tasks::shipped_tokenizer(), length, 7); }),
              HasSubstr("leaves no space"));
}

}  // namespace
}  // namespace dtopp::inference
