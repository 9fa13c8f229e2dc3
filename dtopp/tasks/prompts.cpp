#include "dtopp/tasks/prompts.h"

#include <algorithm>
#include <bit>
#include <random>

#include "dtopp/base/errors.h"

namespace dtopp::tasks {
namespace {

constexpr uint32_t kSeed = 1234;

// Fills the state of MT19937 like CPython for a small integer seed: init_by_array of the reference
// implementation with the one-word key {seed}.
struct PythonSeed {
  using result_type = uint32_t;
  uint32_t seed;

  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    const auto size = static_cast<uint32_t>(end - begin);
    const auto mixed = [&](uint32_t i) { return begin[i - 1] ^ (begin[i - 1] >> 30); };
    begin[0] = 19650218;
    for (uint32_t i = 1; i < size; ++i) begin[i] = 1812433253U * mixed(i) + i;
    uint32_t i = 1;
    const auto advance = [&] {
      if (++i < size) return;
      begin[0] = begin[size - 1];
      i = 1;
    };
    for (uint32_t k = 0; k < size; ++k, advance()) begin[i] = (begin[i] ^ (mixed(i) * 1664525U)) + seed;
    for (uint32_t k = 1; k < size; ++k, advance()) begin[i] = (begin[i] ^ (mixed(i) * 1566083941U)) - i;
    begin[0] = 0x80000000U;
  }
};

// Uniform in [0, bound), like CPython's Random._randbelow for bounds up to 2^32 - 1.
int64_t draw_below(std::mt19937& generator, uint32_t bound) {
  const int bits = std::bit_width(bound);
  uint32_t value = bound;
  while (value >= bound) value = static_cast<uint32_t>(generator()) >> (32 - bits);
  return value;
}

// A set of small non-negative integers with the iteration order of a CPython set.
class PythonSet {
 public:
  size_t size() const { return used_; }

  void insert(int64_t value) {
    const Found found = search(value);
    if (slots_[found.slot] == value) return;
    ++used_;
    if (found.tombstone) {
      slots_[*found.tombstone] = value;
      return;
    }
    slots_[found.slot] = value;
    ++fill_;
    if (5 * fill_ >= 3 * (slots_.size() - 1)) rebuild();
  }

  void erase(int64_t value) {
    const Found found = search(value);
    if (slots_[found.slot] != value) return;
    slots_[found.slot] = kTombstone;
    --used_;
  }

  std::vector<int64_t> elements() const {
    std::vector<int64_t> values;
    for (const int64_t slot : slots_)
      if (slot >= 0) values.push_back(slot);
    return values;
  }

 private:
  static constexpr int64_t kEmpty = -1;
  static constexpr int64_t kTombstone = -2;
  static constexpr size_t kLinearProbes = 9;

  struct Found {
    size_t slot = 0;  // contains the value or is empty
    std::optional<size_t> tombstone;
  };

  Found search(int64_t value) const {
    const size_t mask = slots_.size() - 1;
    auto perturb = static_cast<size_t>(value);
    size_t group = perturb & mask;
    Found found;
    for (;;) {
      const size_t last = group + kLinearProbes <= mask ? group + kLinearProbes : group;
      for (size_t slot = group; slot <= last; ++slot) {
        found.slot = slot;
        if (slots_[slot] == value || slots_[slot] == kEmpty) return found;
        if (slots_[slot] == kTombstone) found.tombstone = slot;
      }
      perturb >>= 5;
      group = (5 * group + 1 + perturb) & mask;
    }
  }

  void rebuild() {
    size_t size = 8;
    while (size <= 4 * used_) size *= 2;
    const std::vector<int64_t> values = elements();
    slots_.assign(size, kEmpty);
    for (const int64_t value : values) slots_[search(value).slot] = value;
    fill_ = used_;
  }

  std::vector<int64_t> slots_ = std::vector<int64_t>(8, kEmpty);
  size_t fill_ = 0;  // slots used since the last rebuild, tombstones included
  size_t used_ = 0;
};

constexpr char kExampleDelimiter[] = "\n";
constexpr int64_t kSpareAnswerTokens = 10;

using Ids = std::vector<int32_t>;

// A question with its answer, in the form of an example.
std::string example_text(const Task& task, const TaskItem& item) {
  const auto gold = static_cast<size_t>(item.gold);
  std::string text(task.prelimiter);
  text.append(task.type == TaskType::kSchema ? item.choices[gold] : item.question);
  text.append(task.continuation_delimiter);
  if (task.type == TaskType::kMultipleChoice) return text.append(item.choices[gold]);
  return text.append(task.type == TaskType::kGeneration ? item.worked_answer : item.continuation);
}

std::string with_leading_space(const std::string& text) { return text.starts_with(' ') ? text : " " + text; }

std::vector<Ids> encode_all(const data::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<Ids> ids;
  for (const std::string& text : texts) ids.push_back(tokenizer.encode(text));
  return ids;
}

// Adds one context per choice, or a single one if all choices share it.
void add_contexts(Request& request, const Ids& preamble, const std::vector<Ids>& contexts) {
  bool shared = contexts.size() == 1;
  for (size_t choice = 0; choice < request.num_sequences(); ++choice) {
    const Ids& context = contexts[contexts.size() == 1 ? 0 : choice];
    const size_t continuation = request.continuations.empty() ? 0 : request.continuations[choice].size();
    const int64_t room = kMaxPromptTokens - request.max_new_tokens - static_cast<int64_t>(continuation);
    if (room < 1)
      throw DataError("item ", request.index, ": its continuation leaves no tokens for a context in ",
                      kMaxPromptTokens, " tokens");
    const auto size = static_cast<int64_t>(preamble.size() + context.size());
    const int64_t cut = std::max<int64_t>(0, size - room);
    request.cut_tokens.push_back(cut);
    shared = shared && cut == request.cut_tokens.front();
    const int64_t cut_preamble = std::min(cut, std::ssize(preamble));
    Ids& ids = request.contexts.emplace_back(preamble.begin() + cut_preamble, preamble.end());
    ids.insert(ids.end(), context.begin() + (cut - cut_preamble), context.end());
  }
  if (!shared) return;
  request.contexts.resize(1);
  request.cut_tokens.resize(1);
}

}  // namespace

std::vector<std::vector<int64_t>> draw_exemplars(int64_t num_items, int64_t shots, int64_t count) {
  std::vector<std::vector<int64_t>> exemplars(static_cast<size_t>(count));
  if (shots == 0) return exemplars;
  if (num_items < kFewestItemsWithExemplars)
    throw DataError("a data set has ", num_items, " items; drawing examples needs at least ",
                    kFewestItemsWithExemplars);
  const auto bound = static_cast<uint32_t>(num_items);
  PythonSeed seed{kSeed};
  std::mt19937 generator(seed);
  for (int64_t item = 0; item < count; ++item) {
    // random.sample() skips indices that it has drawn before; the set does the same.
    PythonSet chosen;
    while (chosen.size() < static_cast<size_t>(shots)) chosen.insert(draw_below(generator, bound));
    chosen.erase(item);
    while (chosen.size() < static_cast<size_t>(shots)) {
      const int64_t value = draw_below(generator, bound);
      if (value != item) chosen.insert(value);
    }
    exemplars[static_cast<size_t>(item)] = chosen.elements();
  }
  return exemplars;
}

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
  context.resize(context.find_last_not_of(" \t\r\n") + 1);
  text.contexts.push_back(std::move(context));
  if (task.type == TaskType::kMultipleChoice)
    std::ranges::transform(item.choices, std::back_inserter(text.continuations), with_leading_space);
  if (task.type == TaskType::kLanguageModeling)
    text.continuations.push_back(with_leading_space(item.continuation));
  return text;
}

std::vector<Request> make_requests(const Task& task, const DataSet& data, const data::Tokenizer& tokenizer,
                                   int64_t limit) {
  const auto num_items = std::ssize(data.items);
  const auto exemplars = draw_exemplars(num_items, task.shots, std::min(limit, num_items));
  int64_t max_new_tokens = 0;  // the same for every item
  if (task.type == TaskType::kGeneration) {
    size_t longest = 0;
    for (const TaskItem& item : data.items)
      longest = std::max(longest, tokenizer.encode(item.raw_worked_answer).size());
    max_new_tokens = static_cast<int64_t>(longest) + kSpareAnswerTokens;
  }
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
