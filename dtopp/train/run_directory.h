// Holds the directory of a run, which one process may use at a time.
#pragma once

#include <filesystem>
#include <optional>

#include "dtopp/base/files.h"
#include "dtopp/config/run_config.h"

namespace dtopp {

class RunDirectory {
 public:
  // Creates missing parts of the path and locks the directory. UsageError if another process holds it,
  // DataError if it cannot be created.
  explicit RunDirectory(std::filesystem::path path);
  // Unless keep() was called, removes everything that the constructor created and that is still empty.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Keeps the directory, because it now contains files of a run.
  void keep() { kept_ = true; }

 private:
  void remove_created() const;

  std::filesystem::path path_;
  std::filesystem::path first_created_;  // the outermost created directory; empty: none
  bool lock_is_new_ = false;
  bool kept_ = false;
  std::optional<DirectoryLock> lock_;
};

// UsageError if config.output holds a run whose configuration differs in a key that affects the result.
void refuse_other_configuration(const RunConfig& config);

}  // namespace dtopp
