// Keeps the finished tasks of an evaluation in a folder beside its output until all are done. An interrupted
// evaluation then resumes with the next task. Each task has two files in the folder:
//
//   copa.json   a record (base/manifest.h): the settings of the evaluation, the sums of the results, and
//               size and checksum of the other file
//   copa.jsonl  the dump lines of its items
//
// It removes only tasks with such a record. All other files stay.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/tasks/results.h"

namespace dtopp::tasks {

// The folder for the results that will be written to `output`.
std::filesystem::path kept_results_of(const std::filesystem::path& output);

class KeptResults {
 public:
  // Keeps nothing.
  KeptResults() = default;
  // `key` holds the settings that a stored result must match. The task's checksum and number of items are
  // added to it.
  KeptResults(std::filesystem::path folder, nlohmann::ordered_json key)
      : folder_(std::move(folder)), key_(std::move(key)) {}

  bool keeps() const { return !folder_.empty(); }
  const std::filesystem::path& folder() const { return folder_; }

  // The sums of a task that was finished with the same key; nullopt otherwise, also if its files are damaged
  // or unreadable.
  std::optional<std::vector<Tally>> find(const TaskRequests& requests) const;

  // Stores a finished task. Each line of `dump` includes its newline. Returns false, and keeps the lines in
  // memory only, if other files have the names. Throws DataError if the folder cannot be written.
  bool keep(const TaskRequests& requests, const std::vector<Tally>& tallies, std::string dump);

  // The dump lines of a task that find() returned or keep() received.
  std::string dump(const Task& task) const;

  // Removes all tasks with a record, and the folder if nothing else is in it.
  void remove() const;

 private:
  std::optional<Manifest> read_record(const Task& task) const;
  nlohmann::ordered_json key_of(const TaskRequests& requests) const;

  std::filesystem::path folder_;
  nlohmann::ordered_json key_;
  std::map<std::string, std::string> dumps_in_memory_;  // by file name
};

}  // namespace dtopp::tasks
