#include "dtopp/tasks/prompts.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

using testing::ElementsAre;
using Indices = std::vector<int64_t>;

// CPython's results for small data sets. In the first, the item's own index was drawn.
TEST(Exemplars, are_those_of_cpython) {
  const auto exemplars = draw_exemplars(100, 5, 100);
  EXPECT_THAT(exemplars[0], ElementsAre(99, 74, 11, 14, 56));
  EXPECT_THAT(exemplars[1], ElementsAre(4, 10, 12, 85, 88));
  EXPECT_THAT(exemplars[99], ElementsAre(65, 61, 56, 92, 93));
  const auto many = draw_exemplars(5153, 5, 5153);
  EXPECT_THAT(many[0], ElementsAre(4769, 742, 957, 3610, 61));
  EXPECT_THAT(many[5152], ElementsAre(234, 1194, 212, 1044, 4988));
}

RC_GTEST_PROP(Exemplars, are_distinct_others_whatever_the_limit, ()) {
  const auto num_items = *rc::gen::inRange<int64_t>(kFewestItemsWithExemplars, 3000);
  const auto count = *rc::gen::inRange<int64_t>(0, std::min<int64_t>(num_items, 300));
  const auto exemplars = draw_exemplars(num_items, 5, count);
  RC_ASSERT(exemplars == [&] {
    auto all = draw_exemplars(num_items, 5, num_items);
    all.resize(static_cast<size_t>(count));
    return all;
  }());
  for (int64_t item = 0; item < count; ++item) {
    const Indices& chosen = exemplars[static_cast<size_t>(item)];
    RC_ASSERT(std::set<int64_t>(chosen.begin(), chosen.end()).size() == 5U);
    RC_ASSERT(std::ranges::all_of(chosen, [&](int64_t i) { return i >= 0 && i < num_items && i != item; }));
  }
}

TEST(Exemplars, none_are_drawn_for_zero_shots) {
  EXPECT_EQ(draw_exemplars(3, 0, 2), std::vector<Indices>(2));
}

TEST(Exemplars, too_few_items_are_an_error) {
  EXPECT_EQ(draw_exemplars(22, 5, 22).size(), 22);
  error_of<DataError>([] { draw_exemplars(21, 5, 1); });
}

std::string as_text(const std::vector<Indices>& exemplars) {
  std::string text;
  for (const Indices& chosen : exemplars) {
    for (size_t i = 0; i < chosen.size(); ++i) text += (i > 0 ? " " : "") + std::to_string(chosen[i]);
    text += "\n";
  }
  return text;
}

// One line per size: n, the SHA-256 of the indices as text, and the data sets of that size.
TEST_F(EvaluationData, exemplars_of_every_size_in_use_equal_the_golden_ones) {
  const auto directory = evaluation_data() / "golden/fewshot";
  std::istringstream index(read_file(directory / "INDEX.tsv"));
  int64_t sizes = 0;
  int64_t files = 0;
  std::string line;
  while (std::getline(index, line)) {
    std::istringstream fields(line);
    int64_t num_items = 0;
    std::string checksum;
    ASSERT_TRUE(fields >> num_items >> checksum) << line;
    const std::string text = as_text(draw_exemplars(num_items, 5, num_items));
    Sha256 digest;
    digest.update(text);
    EXPECT_EQ(digest.hexdigest(), checksum) << num_items;
    ++sizes;
    const auto path = directory / ("N" + std::to_string(num_items) + ".txt");
    if (!std::filesystem::exists(path)) continue;
    EXPECT_EQ(text, read_file(path)) << num_items;
    ++files;
  }
  EXPECT_GE(sizes, 40);
  EXPECT_GE(files, 5);
}

using nlohmann::json;
using testing::ElementsAre;
using Ids = std::vector<int32_t>;

TaskItem choice_item(const std::string& question, const std::vector<std::string>& choices, int64_t gold = 0) {
  TaskItem item;
  item.question = question;
  item.choices = choices;
  item.gold = gold;
  return item;
}

// Enough items to draw examples from; each word of "x x x" is one id.
DataSet choices_data(int64_t query_words, const std::vector<std::string>& choices) {
  std::string query = "x";
  for (int64_t i = 1; i < query_words; ++i) query += " x";
  DataSet data;
  data.items.assign(kFewestItemsWithExemplars, choice_item(query, choices));
  return data;
}

TEST(Prompts, choices_get_one_leading_space) {
  Task task = task_named("arc_easy");
  const std::vector<TaskItem> items = {choice_item("q", {"a", " b", ", c", "  d"})};
  const PromptText text = make_prompt_text(task, items, 0, {});
  EXPECT_THAT(text.contexts, ElementsAre("q\nAnswer:"));
  EXPECT_THAT(text.continuations, ElementsAre(" a", " b", " , c", "  d"));
}

TEST(Prompts, exemplars_keep_their_delimiters_and_end_without_a_newline) {
  const std::vector<TaskItem> items = {choice_item("q", {"a", "b"}, 1), choice_item("r", {"c ", "d"})};
  const std::vector<int64_t> exemplars = {1, 0, 1};
  const PromptText text = make_prompt_text(task_named("piqa"), items, 0, exemplars);
  EXPECT_EQ(text.preamble, "r\nAnswer: c \nq\nAnswer: b\nr\nAnswer: c ");
  EXPECT_THAT(text.contexts, ElementsAre("\nq\nAnswer:"));
}

TEST(Prompts, a_schema_has_one_context_a_choice) {
  std::vector<TaskItem> items = {choice_item("", {"he ", "she"}, 1)};
  items[0].continuation = "ran.";
  const std::vector<int64_t> exemplars = {0};
  const PromptText text = make_prompt_text(task_named("winogrande"), items, 0, exemplars);
  EXPECT_EQ(text.preamble, "she ran.");
  EXPECT_THAT(text.contexts, ElementsAre("\nhe ", "\nshe"));
  EXPECT_THAT(text.continuations, ElementsAre(" ran.", " ran."));
}

TEST(Prompts, a_context_is_cut_on_the_left_for_each_choice_apart) {
  const DataSet data = choices_data(2100, {"x", "x x x", "x", "x"});
  const auto requests = make_requests(task_named("arc_easy"), data, shipped_tokenizer(), 1);
  const Request& request = requests.at(0);
  ASSERT_EQ(request.contexts.size(), 4);
  EXPECT_EQ(request.contexts[0].size(), 2047);
  EXPECT_EQ(request.contexts[1].size(), 2045);
  EXPECT_EQ(request.cut(1), request.cut(0) + 2);
  EXPECT_TRUE(
      std::equal(request.contexts[1].begin(), request.contexts[1].end(), request.contexts[0].begin() + 2));
  EXPECT_EQ(request.longest(), 2048);
}

TEST(Prompts, equally_cut_choices_share_their_context) {
  const auto requests =
      make_requests(task_named("arc_easy"), choices_data(2100, {"x", "x", "x", "x"}), shipped_tokenizer(), 1);
  EXPECT_EQ(requests.at(0).contexts.size(), 1);
  EXPECT_EQ(requests.at(0).contexts[0].size(), 2047);
  EXPECT_GT(requests.at(0).cut(3), 0);
}

TEST(Prompts, a_continuation_longer_than_the_limit_is_an_error) {
  std::string longest = "x";
  for (int i = 1; i < 2047; ++i) longest += " x";
  Task task = task_named("arc_easy");
  const auto contexts =
      make_requests(task, choices_data(3, {longest, "x", "x", "x"}), shipped_tokenizer(), 1)[0];
  EXPECT_EQ(contexts.contexts[0].size(), 1);
  const DataSet too_long = choices_data(3, {longest + " x", "x", "x", "x"});
  error_of<DataError>([&] { make_requests(task, too_long, shipped_tokenizer(), 1); });
}

// A prompt never exceeds the limit, loses tokens only if it must, and always loses them on the left.
RC_GTEST_PROP(Prompts, are_the_last_tokens_that_fit, ()) {
  const auto query_words = *rc::gen::inRange<int64_t>(1, 900);
  const auto choice_words = *rc::gen::inRange<int64_t>(1, 900);
  std::string choice = "y";
  for (int64_t i = 1; i < choice_words; ++i) choice += " y";
  const DataSet data = choices_data(query_words, {choice, "z"});
  const Task task = task_named("piqa");
  const Request request = make_requests(task, data, shipped_tokenizer(), 1).at(0);
  const PromptText text =
      make_prompt_text(task, data.items, 0, draw_exemplars(kFewestItemsWithExemplars, 5, 1)[0]);
  Ids whole = shipped_tokenizer().encode(text.preamble);
  const Ids context = shipped_tokenizer().encode(text.contexts.at(0));
  whole.insert(whole.end(), context.begin(), context.end());
  for (size_t i = 0; i < 2; ++i) {
    const size_t length = request.context(i).size() + request.continuations[i].size();
    RC_ASSERT(length <= 2048U);
    RC_ASSERT(request.cut(i) == 0 || length == 2048U);
    RC_ASSERT(request.context(i).size() + static_cast<size_t>(request.cut(i)) == whole.size());
    RC_ASSERT(std::equal(request.context(i).rbegin(), request.context(i).rend(), whole.rbegin()));
  }
}

class GoldenPrompts : public EachTask {};

TEST_P(GoldenPrompts, first_prompts_equal_the_golden_ones) {
  const Task task = task_named(GetParam());
  const auto data_sets = load_task(task, evaluation_data() / "data");
  for (const json& golden : read_golden(GetParam() + ".json")) {
    const std::string category = golden["category"].is_null() ? "" : golden["category"].get<std::string>();
    const auto data = std::ranges::find(data_sets, category, &DataSet::category);
    ASSERT_NE(data, data_sets.end()) << category;
    const auto index = golden["index"].get<int64_t>();
    const auto num_items = static_cast<int64_t>(data->items.size());
    const auto exemplars = draw_exemplars(num_items, task.shots, index + 1).back();
    EXPECT_EQ(json(exemplars), golden["fewshot"]);
    const PromptText text = make_prompt_text(task, data->items, index, exemplars);
    EXPECT_EQ(json(text.preamble), golden["prompt"]);
    const Request request = make_requests(task, *data, shipped_tokenizer(), index + 1).back();
    const bool generates = task.type == TaskType::kGeneration;
    EXPECT_EQ(text.continuations.empty(), generates);
    for (size_t choice = 0; choice < golden["contexts"].size(); ++choice) {
      EXPECT_EQ(json(text.contexts[text.contexts.size() == 1 ? 0 : choice]), golden["contexts"][choice]);
      EXPECT_EQ(json(request.context(choice)), golden["context_tokens"][choice]);
      const Ids continuation = generates ? Ids() : request.continuations.at(choice);
      EXPECT_EQ(json(continuation), golden["continuation_tokens"][choice]);
      EXPECT_EQ(json(generates ? "" : text.continuations[choice]), golden["continuations"][choice]);
      const auto untrimmed =
          static_cast<int64_t>(request.context(choice).size() + continuation.size()) + request.cut(choice);
      EXPECT_EQ(untrimmed, golden["untrimmed_len"][choice]);
    }
    EXPECT_EQ(request.num_sequences(), golden["contexts"].size());
    if (!generates) {
      EXPECT_EQ(data->items[static_cast<size_t>(index)].gold,
                golden["gold"].is_null() ? 0 : golden["gold"].get<int64_t>());
    }
  }
}

void append_ids(std::string& line, const Ids& ids) {
  for (size_t i = 0; i < ids.size(); ++i) line.append(i > 0 ? " " : "").append(std::to_string(ids[i]));
}

// The counts and the digest of the golden summary.
struct SequenceSummary {
  int64_t items = 0, sequences = 0, truncated = 0, total_tokens = 0, cont_tokens = 0, max_untrimmed = 0;
  int64_t gen_budget = 0;
  Sha256 digest;

  void add(const Request& request) {
    ++items;
    gen_budget = request.max_new_tokens;
    for (size_t choice = 0; choice < request.num_sequences(); ++choice) {
      const Ids continuation = request.continuations.empty() ? Ids() : request.continuations[choice];
      const auto length = static_cast<int64_t>(request.context(choice).size() + continuation.size());
      std::string line;
      append_ids(line, request.context(choice));
      append_ids(line += "|", continuation);
      digest.update(line += "\n");
      ++sequences;
      truncated += request.cut(choice) > 0 ? 1 : 0;
      total_tokens += length;
      cont_tokens += static_cast<int64_t>(continuation.size());
      max_untrimmed = std::max(max_untrimmed, length + request.cut(choice));
    }
  }
};

// All tasks together take three seconds. Under sanitizers the large ones would take most of the suite's time.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kMostTokens = 1000000;
#else
constexpr int64_t kMostTokens = std::numeric_limits<int64_t>::max();
#endif

TEST_P(GoldenPrompts, all_sequences_have_the_golden_checksum) {
  const json golden = read_golden("summary.json").at(GetParam());
  if (golden["total_tokens"].get<int64_t>() > kMostTokens) GTEST_SKIP() << "a large task, under sanitizers";
  const Task task = task_named(GetParam());
  SequenceSummary summary;
  for (const DataSet& data : load_task(task, evaluation_data() / "data")) {
    for (const Request& request : make_requests(task, data, shipped_tokenizer())) summary.add(request);
  }
  EXPECT_EQ(summary.items, golden["items"]);
  EXPECT_EQ(summary.sequences, golden["sequences"]);
  EXPECT_EQ(summary.truncated, golden["truncated"]);
  EXPECT_EQ(summary.total_tokens, golden["total_tokens"]);
  EXPECT_EQ(summary.cont_tokens, golden["cont_tokens"]);
  EXPECT_EQ(summary.max_untrimmed, golden["max_untrimmed"]);
  EXPECT_EQ(summary.gen_budget, golden["gen_budget"]);
  EXPECT_EQ(json(summary.digest.hexdigest()), golden["sha256"]);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPrompts, testing::ValuesIn(task_names()),
                         [](const auto& info) { return info.param; });

}  // namespace

}  // namespace dtopp::tasks
