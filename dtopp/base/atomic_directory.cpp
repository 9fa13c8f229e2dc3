#include "dtopp/base/atomic_directory.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "dtopp/base/files.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/base/temporary.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReplaced = ".replaced-";

// The name that the old directory has while the new one is renamed to `path`.
fs::path replaced_name(const fs::path& path) {
  const fs::path plain = without_trailing_slash(path);
  return plain.parent_path() / (std::string(kReplaced) + plain.filename().string());
}

void finish_replacement(const fs::path& replaced, const fs::path& path) {
  if (!is_there(replaced)) return;
  if (is_there(path))
    remove_tree(replaced);
  else
    rename_durably(replaced, path);
}

// Both names exist at every moment. A file system without RENAME_EXCHANGE gets two renames instead.
void exchange_durably(const fs::path& fresh, const fs::path& old) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) == 0)
    return sync_directory(fs::absolute(fresh).parent_path());
  if (errno != EINVAL && errno != ENOSYS) throw file_error("exchange with " + old.string(), fresh, errno);
  const fs::path replaced = replaced_name(old);
  rename_durably(old, replaced);
  rename_durably(fresh, old);
  remove_tree(replaced);
}

void sync_tree(const fs::path& directory) {
  for (const auto& path : list_directory(directory)) {
    if (path_kind(path) == PathKind::kDirectory)
      sync_tree(path);
    else
      sync_file(path);
  }
  sync_directory(directory);
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path path, bool replace) : path_(std::move(path)) {
  if (replace) finish_replacement(replaced_name(path_), path_);
  exists_ = is_there(path_);
  if (exists_ && !replace) throw file_error("create the directory", path_, EEXIST);
  temporary_ = temporary_sibling(path_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) throw file_error("create the directory", temporary_, errno);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;  // an earlier error is already being reported; the remains are a leftover
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  sync_tree(temporary_);
  if (exists_)
    exchange_durably(temporary_, path_);
  else
    rename_durably(temporary_, path_);
  remove_tree(std::exchange(temporary_, {}));  // after an exchange: the old directory
}

void put_back_replaced(const fs::path& directory) {
  for (const fs::path& path : list_directory(directory)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kReplaced)) finish_replacement(path, directory / name.substr(kReplaced.size()));
  }
}

}  // namespace dtopp
