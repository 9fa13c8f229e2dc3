#include "dtopp/base/temporary.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/path_kind.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".tmp-";
constexpr size_t kDigits = 16;

std::string random_digits() {
  uint64_t number = 0;
  if (retry([&] { return ::getrandom(&number, sizeof(number), 0); }) != sizeof(number))
    throw file_error("read", "the kernel's random numbers", errno);
  return format("%016llx", static_cast<unsigned long long>(number));
}

// The part between the prefix and the digits; empty if the name is not a temporary one.
std::string_view finished_name(std::string_view name) {
  if (name.size() < kPrefix.size() + 1 + 1 + kDigits || !name.starts_with(kPrefix)) return {};
  const auto tail = name.substr(name.size() - kDigits - 1);
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (tail.front() != '.' || !std::ranges::all_of(tail.substr(1), is_digit)) return {};
  return name.substr(kPrefix.size(), name.size() - kPrefix.size() - tail.size());
}

// Unlinks while the lock is held. A writer that gets the lock later then detects that its file is gone.
void remove_if_abandoned(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
      ::flock(descriptor, LOCK_EX | LOCK_NB) == 0)
    ::unlink(path.c_str());
  ::close(descriptor);
}

}  // namespace

fs::path temporary_sibling(const fs::path& path) {
  const fs::path plain = without_trailing_slash(path);
  return plain.parent_path() / (std::string(kPrefix) + plain.filename().string() + "." + random_digits());
}

fs::path finished_sibling(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string_view finished = finished_name(name);
  return finished.empty() ? path : path.parent_path() / finished;
}

bool is_temporary_name(std::string_view name) { return !finished_name(name).empty(); }

bool is_temporary_name_of(std::string_view of, std::string_view name) {
  return !of.empty() && finished_name(name) == of;
}

void remove_abandoned(const fs::path& path) {
  const std::string of = path.filename().string();
  std::error_code unreadable;  // remove nothing
  for (fs::directory_iterator it(path.has_parent_path() ? path.parent_path() : ".", unreadable), end;
       !unreadable && it != end; it.increment(unreadable)) {
    if (is_temporary_name_of(of, it->path().filename().string())) remove_if_abandoned(it->path());
  }
}

bool hold_temporary(int descriptor) {
  // A file system without locks: remove_abandoned() cannot lock the file either, and does not remove it.
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

}  // namespace dtopp
