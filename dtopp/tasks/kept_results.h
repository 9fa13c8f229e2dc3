// The finished tasks of an evaluation, kept in a folder beside its output until all are done, so that an
// interrupted evaluation goes on with the next one. Each task has two files there:
//   copa.json   a record (base/manifest.h): what the results were computed with, their sums, and size and
//               checksum of the other file
//   copa.jsonl  the dump lines of its items
// Only what such a record names is read, replaced or removed. Whatever else lies there stays.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/tasks/results.h"

namespace dtopp {

// The folder of what will be written to `output`.
std::filesystem::path kept_results_of(const std::filesystem::path& output);

class KeptResults {
 public:
  // Keeps nothing.
  KeptResults() = default;
  // `key`: what a result must have been computed with to count; what the task is made of is added to it.
  KeptResults(std::filesystem::path folder, nlohmann::ordered_json key)
      : folder_(std::move(folder)), key_(std::move(key)) {}

  bool keeps() const { return !folder_.empty(); }
  const std::filesystem::path& folder() const { return folder_; }

  // The sums of a task that was finished with the same key; nullopt for everything else that may lie there,
  // damaged or unreadable files included.
  std::optional<std::vector<Tally>> find(const TaskRequests& requests) const;

  // Keeps a finished task, its dump lines each with their end. False where files that are not dtopp's have
  // its names: the lines are then kept in memory alone. DataError where the folder cannot be written.
  bool keep(const TaskRequests& requests, const std::vector<Tally>& tallies, std::string dump);

  // The dump lines of a task that was found or kept.
  std::string dump(const Task& task) const;

  // Removes every task that records there name; the folder too where dtopp made it and nothing else is in it.
  void remove() const;

 private:
  std::optional<Manifest> read_record(const Task& task) const;
  bool made_folder() const;
  bool may_write(const Task& task) const;
  nlohmann::ordered_json key_of(const TaskRequests& requests) const;

  std::filesystem::path folder_;
  nlohmann::ordered_json key_;
  std::map<std::string, std::string> dumps_in_memory_;
};

}  // namespace dtopp
