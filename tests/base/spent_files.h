// Opens no more files.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace dtopp {

// While it exists, the process cannot open a file or accept a connection.
class SpentFiles {
 public:
  SpentFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::open("/dev/null", O_RDONLY);
    ::close(next);
    const rlimit spent{static_cast<rlim_t>(next), before_.rlim_max};  // descriptors below it are taken
    setrlimit(RLIMIT_NOFILE, &spent);
  }
  ~SpentFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  SpentFiles(const SpentFiles&) = delete;
  SpentFiles& operator=(const SpentFiles&) = delete;

 private:
  rlimit before_{};
};

}  // namespace dtopp
