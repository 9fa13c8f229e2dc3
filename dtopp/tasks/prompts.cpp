#include "dtopp/tasks/prompts.h"

#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/tasks/exemplars.h"

namespace dtopp::tasks {
namespace {

constexpr char kExampleDelimiter[] = "\n";
constexpr int64_t kSpareAnswerTokens = 10;

using Ids = std::vector<int32_t>;

// A question with its answer, in the form of an example.
std::string example_text(const Task& task, const TaskItem& item) {
  const auto gold = static_cast<size_t>(item.gold);
  std::string text(task.prelimiter);
  text.append(task.type == TaskType::kSchema ? item.choices[gold] : item.question);
  text.append(task.continuation_delimiter);
  switch (task.type) {
    case TaskType::kMultipleChoice:
      return text.append(item.choices[gold]);
    case TaskType::kGeneration:
      return text.append(item.worked_answer);
    case TaskType::kSchema:
    case TaskType::kLanguageModeling:
      break;
  }
  return text.append(item.continuation);
}

void trim_right(std::string& text) { text.resize(text.find_last_not_of(" \t\r\n") + 1); }

std::string with_leading_space(const std::string& text) { return text.starts_with(' ') ? text : " " + text; }

std::vector<Ids> encode_all(const data::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<Ids> ids;
  ids.reserve(texts.size());
  for (const std::string& text : texts) ids.push_back(tokenizer.encode(text));
  return ids;
}

// The last `room` ids of preamble and context together.
Ids last_ids(const Ids& preamble, const Ids& context, int64_t room) {
  const auto size = static_cast<int64_t>(preamble.size() + context.size());
  const int64_t cut = std::max<int64_t>(0, size - room);
  const int64_t cut_preamble = std::min(cut, static_cast<int64_t>(preamble.size()));
  Ids ids(preamble.begin() + cut_preamble, preamble.end());
  ids.insert(ids.end(), context.begin() + (cut - cut_preamble), context.end());
  return ids;
}

// Adds one context per choice, or a single one if all choices share it.
void add_contexts(Request& request, const Ids& preamble, const std::vector<Ids>& contexts) {
  int64_t shared_cut = 0;
  bool shared = contexts.size() == 1;
  for (size_t choice = 0; choice < request.num_sequences(); ++choice) {
    const Ids& context = contexts[contexts.size() == 1 ? 0 : choice];
    const size_t continuation = request.continuations.empty() ? 0 : request.continuations[choice].size();
    const int64_t room = kMaxPromptTokens - request.max_new_tokens - static_cast<int64_t>(continuation);
    if (room < 1)
      throw DataError("item " + std::to_string(request.index) +
                      ": its continuation leaves no tokens for a context in " +
                      std::to_string(kMaxPromptTokens) + " tokens");
    const auto size = static_cast<int64_t>(preamble.size() + context.size());
    const int64_t cut = std::max<int64_t>(0, size - room);
    if (choice == 0) shared_cut = cut;
    shared = shared && cut == shared_cut;
    request.cut_tokens.push_back(cut);
    request.contexts.push_back(last_ids(preamble, context, room));
  }
  if (!shared) return;
  request.contexts.resize(1);
  request.cut_tokens.resize(1);
}

}  // namespace

int64_t Request::longest() const {
  int64_t longest = 0;
  for (size_t choice = 0; choice < num_sequences(); ++choice) {
    const size_t continuation = continuations.empty() ? 0 : continuations[choice].size();
    longest = std::max(longest, static_cast<int64_t>(context(choice).size() + continuation));
  }
  return longest + max_new_tokens;
}

PromptText make_prompt_text(const Task& task, std::span<const TaskItem> items, int64_t index,
                            std::span<const int64_t> exemplars) {
  PromptText text;
  for (const int64_t exemplar : exemplars) {
    if (!text.preamble.empty()) text.preamble += kExampleDelimiter;
    text.preamble += example_text(task, items[static_cast<size_t>(exemplar)]);
  }
  const TaskItem& item = items[static_cast<size_t>(index)];
  const std::string start = text.preamble.empty() ? "" : kExampleDelimiter;
  if (task.type == TaskType::kSchema) {
    // The harness trims the delimiter before it appends an option, and trims nothing else: options keep their
    // white space.
    for (const std::string& option : item.choices) text.contexts.push_back(start + option);
    text.continuations.assign(item.choices.size(), with_leading_space(item.continuation));
    return text;
  }
  std::string context = start;
  context.append(task.prelimiter).append(item.question).append(task.continuation_delimiter);
  trim_right(context);
  text.contexts.push_back(std::move(context));
  if (task.type == TaskType::kMultipleChoice)
    std::ranges::transform(item.choices, std::back_inserter(text.continuations), with_leading_space);
  if (task.type == TaskType::kLanguageModeling)
    text.continuations.push_back(with_leading_space(item.continuation));
  return text;
}

int64_t answer_budget(const Task& task, std::span<const TaskItem> items, const data::Tokenizer& tokenizer) {
  if (task.type != TaskType::kGeneration) return 0;
  size_t longest = 0;
  for (const TaskItem& item : items)
    longest = std::max(longest, tokenizer.encode(item.raw_worked_answer).size());
  return static_cast<int64_t>(longest) + kSpareAnswerTokens;
}

std::vector<Request> make_requests(const Task& task, const DataSet& data, const data::Tokenizer& tokenizer,
                                   int64_t limit) {
  const auto num_items = static_cast<int64_t>(data.items.size());
  const auto exemplars = draw_exemplars(num_items, task.shots, std::min(limit, num_items));
  const int64_t max_new_tokens = answer_budget(task, data.items, tokenizer);
  std::vector<Request> requests;
  for (size_t item = 0; item < exemplars.size(); ++item) {
    Request request;
    request.index = static_cast<int64_t>(item);
    request.max_new_tokens = max_new_tokens;
    const PromptText text = make_prompt_text(task, data.items, request.index, exemplars[item]);
    request.continuations = encode_all(tokenizer, text.continuations);
    add_contexts(request, tokenizer.encode(text.preamble), encode_all(tokenizer, text.contexts));
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace dtopp::tasks
