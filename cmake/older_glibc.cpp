// Lets a wheel's program run with glibc 2.35 and later. Debian 12's libarchive needs a function of glibc 2.36
// to encrypt zip files, which dtopp never does.
#include <cstddef>
#include <cstdlib>

#include <sys/random.h>

extern "C" [[gnu::visibility("hidden")]] void arc4random_buf(void* bytes, size_t size) {
  auto* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = getrandom(next, size, 0);
    if (count < 0) std::abort();
    next += count;
    size -= static_cast<size_t>(count);
  }
}
