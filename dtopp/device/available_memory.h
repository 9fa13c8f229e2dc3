// How much memory this process can still take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace dtopp {

// Bytes: the least of what the machine has free (MemAvailable of /proc/meminfo), what the control groups of
// this process leave (limit - usage + page cache that can be dropped; versions 1 and 2, every level), and
// what RLIMIT_AS leaves. UINT64_MAX where none of them can be read. `root` stands for "/" in tests.
uint64_t available_memory(const std::filesystem::path& root = "/");

// Of this process, in bytes: "VmRSS", resident now; "VmHWM", the most that ever was. 0 where it is not known.
uint64_t process_memory(const std::string& key);

}  // namespace dtopp
