// With this a wheel's program runs from glibc 2.35 on. Debian 12's libarchive asks for a function of 2.36
// where it encrypts zip files, which dtopp never has it do.
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
