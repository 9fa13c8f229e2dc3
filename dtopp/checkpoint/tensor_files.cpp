#include "dtopp/checkpoint/tensor_files.h"

#include <sstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"

namespace dtopp::checkpoint {
namespace {

// nullopt if the name is not that of a step.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  const auto digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  if (digits.size() < 8 || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos)
    return std::nullopt;
  const int64_t step = std::stoll(digits);
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

using nlohmann::json;

constexpr uint64_t kMostIndexBytes = uint64_t{1} << 28;

std::vector<std::vector<TensorSource>> split(const std::vector<TensorSource>& tensors, uint64_t shard_bytes) {
  std::vector<std::vector<TensorSource>> shards(1);
  uint64_t size = 0;
  for (const auto& tensor : tensors) {
    if (!shards.back().empty() && size + tensor.size > shard_bytes) {
      shards.emplace_back();
      size = 0;
    }
    shards.back().push_back(tensor);
    size += tensor.size;
  }
  return shards;
}

// Uses Hugging Face's names and index format, so that its readers find the shards.
void add_files(TensorFiles& to, std::string_view kind, const std::vector<TensorSource>& tensors,
               uint64_t shard_bytes) {
  auto shards = split(tensors, shard_bytes);
  if (shards.size() == 1) {
    to.files.push_back({kind, whole_file(kind), std::move(shards.front())});
    return;
  }
  json weight_map = json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = part_file(kind, i + 1, shards.size());
    for (const auto& tensor : shards[i]) {
      if (!weight_map.emplace(tensor.name, name).second)
        throw DataError(tensor.name, ": the tensor appears twice");
      total += tensor.size;
    }
    to.files.push_back({kind, name, std::move(shards[i])});
  }
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  to.indexes[index_file(kind)] = dump_json(index, 2) + "\n";
}

// The bytes of a file in pieces, tensor after tensor.
class Pieces {
 public:
  explicit Pieces(const TensorFile& file) : kind_(file.kind), tensors_(file.tensors) {}

  // The next piece, of at most `limit` bytes; an empty one at the end.
  TensorByteRange next(uint64_t limit) {
    while (at_ < tensors_.size() && begin_ == tensors_[at_].size) {
      ++at_;
      begin_ = 0;
    }
    if (at_ == tensors_.size()) return {};
    const uint64_t begin = begin_;
    begin_ = std::min(begin + limit, tensors_[at_].size);
    return {kind_, &tensors_[at_], begin, begin_ - begin};
  }

 private:
  std::string_view kind_;
  std::span<const TensorSource> tensors_;
  size_t at_ = 0;
  uint64_t begin_ = 0;
};

// The file that this rank writes, if any. It stores its first error instead of throwing. The ranks check the
// errors after all pieces have been sent, because no rank may leave a collective that others wait in.
class OwnFile {
 public:
  void open(const fs::path& directory, const TensorFile& file) {
    name_ = file.name;
    attempt([&] {
      // transformers requires this metadata.
      const std::string head = safetensors_head(directory / name_, file.tensors, {{"format", "pt"}});
      file_.emplace(directory / name_, &hasher_);
      file_->write(head);
      size_ = head.size();
      for (const TensorSource& tensor : file.tensors) size_ += tensor.size;
    });
  }
  void write(std::span<const std::byte> bytes) {
    attempt([&] { file_->write(bytes); });
  }
  void finish(ManifestFiles& files) {
    if (name_.empty()) return;
    attempt([&] {
      if (file_->size() != size_)
        throw DataError(file_->path(), ": ", file_->size(), " bytes were written of ", size_);
      file_->sync_and_close();
      files[name_] = {size_, hasher_.hexdigest()};
    });
  }
  const std::exception_ptr& error() const { return error_; }

 private:
  template <class Action>
  void attempt(const Action& action) {
    if (error_) return;
    try {
      action();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  std::string name_;
  Hasher hasher_;
  std::optional<OutputFile> file_;
  uint64_t size_ = 0;  // bytes of the whole file
  std::exception_ptr error_;
};

// Writes files[i] on rank writers[i], all at the same time, and adds this rank's file to `written`.
void write_together(const fs::path& directory, std::span<const TensorFile> files,
                    const std::vector<int64_t>& writers, SavingRanks& ranks, ManifestFiles& written) {
  OwnFile own;
  std::vector<Pieces> pieces;
  for (size_t i = 0; i < files.size(); ++i) {
    pieces.emplace_back(files[i]);
    if (writers[i] == ranks.rank()) own.open(directory, files[i]);
  }
  // A multiple of 64 bytes: whole elements of every dtype.
  const uint64_t limit = std::max<uint64_t>(kCollectedBytes / files.size() / 64, 1) * 64;
  for (;;) {
    std::vector<TensorByteRange> by_rank(static_cast<size_t>(ranks.size()));
    bool some = false;
    for (size_t i = 0; i < files.size(); ++i) {
      const TensorByteRange range = pieces[i].next(limit);
      some = some || range.tensor;
      by_rank[static_cast<size_t>(writers[i])] = range;
    }
    if (!some) break;
    ranks.collect(by_rank, [&](std::span<const std::byte> bytes) { own.write(bytes); });
  }
  own.finish(written);
  ranks.check(own.error());
}

// The ranks that can access the directory that rank 0 created: on the same host or through a shared file
// system.
std::vector<int64_t> ranks_that_see(const fs::path& directory, SavingRanks& ranks) {
  std::vector<int64_t> those;
  std::error_code unseen;
  const auto answers = ranks.gather(fs::is_directory(directory, unseen) ? "yes" : "");
  for (size_t rank = 0; rank < answers.size(); ++rank)
    if (rank == 0 || !answers[rank].empty()) those.push_back(static_cast<int64_t>(rank));
  return those;
}

// Gathers the files of all ranks.
ManifestFiles merge(const ManifestFiles& files, SavingRanks& ranks) {
  std::string lines;
  for (const auto& [name, entry] : files)
    lines += name + " " + std::to_string(entry.size) + " " + entry.xxh3_128 + "\n";
  ManifestFiles all;
  for (const std::string& text : ranks.gather(lines)) {
    std::istringstream stream(text);
    std::string name;
    ManifestEntry entry;
    while (stream >> name >> entry.size >> entry.xxh3_128) all[name] = entry;
  }
  return all;
}

}  // namespace

std::string part_file(std::string_view kind, size_t number, size_t count) {
  return std::string(kind) + format("-%05zu-of-%05zu.safetensors", number, count);
}

bool is_optimizer_file(std::string_view name) {
  return name == whole_file(kOptimizer) || name == index_file(kOptimizer) ||
         (name.starts_with("optimizer-") && name.ends_with(".safetensors"));
}

std::string checkpoint_name(int64_t step) { return format("step-%08ld", step); }

bool is_checkpoint_name(const std::string& name) { return step_of(name).has_value(); }

std::vector<int64_t> list_checkpoint_steps(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    if (step && path_kind(it->path()) == PathKind::kDirectory) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw file_error("list", checkpoints, error.value());
  std::ranges::sort(steps, std::greater());
  return steps;
}

TensorFiles split_into_files(const CheckpointContents& contents, uint64_t shard_bytes) {
  TensorFiles files;
  add_files(files, kModel, contents.parameters, shard_bytes);
  add_files(files, kOptimizer, contents.optimizer, shard_bytes);
  if (!contents.ema.empty()) add_files(files, kEma, contents.ema, shard_bytes);
  return files;
}

std::map<std::string, std::string> read_tensor_index(const fs::path& path) {
  const json index = parse_json(read_file(path, kMostIndexBytes), path.string());
  const json weight_map = index.is_object() ? index.value("weight_map", json()) : json();
  if (!weight_map.is_object()) throw DataError(path, ": holds no weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : weight_map.items()) {
    if (!file.is_string()) throw DataError(path, ": ", name, ": must name a file");
    files.emplace(name, file.get<std::string>());
  }
  return files;
}

ManifestFiles write_tensor_files(const fs::path& directory, const std::vector<TensorFile>& files,
                                 SavingRanks& ranks) {
  const std::vector<int64_t> writers = ranks_that_see(directory, ranks);
  ManifestFiles written;
  for (size_t begin = 0; begin < files.size(); begin += writers.size()) {
    const size_t count = std::min(writers.size(), files.size() - begin);
    write_together(directory, std::span(files).subspan(begin, count), writers, ranks, written);
  }
  return merge(written, ranks);
}

}  // namespace dtopp::checkpoint
