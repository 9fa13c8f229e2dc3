// The directory of a run, held by one process at a time.
#pragma once

#include <filesystem>
#include <optional>

#include "dtopp/base/files.h"
#include "dtopp/config/run_config.h"

namespace dtopp {

class RunDirectory {
 public:
  // Creates what is missing of the path and locks the directory. UsageError when another process holds it,
  // DataError when it cannot be created.
  explicit RunDirectory(std::filesystem::path path);
  // Unless keep() was called, removes what the constructor created and nothing else has been put into.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // From here on there is something of a run in it.
  void keep() { kept_ = true; }

 private:
  void remove_created() const;

  std::filesystem::path path_;
  std::filesystem::path first_created_;  // the outermost directory that was missing; empty: none
  bool lock_is_new_ = false;
  bool kept_ = false;
  std::optional<DirectoryLock> lock_;
};

// UsageError where config.output holds a run whose configuration differs in what affects the result.
void refuse_other_configuration(const RunConfig& config);

}  // namespace dtopp
