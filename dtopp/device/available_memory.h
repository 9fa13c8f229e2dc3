// Measures how much memory this process can still allocate, and how much it uses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace dtopp::device {

// The bytes that this process can still allocate. It is the minimum of three numbers:
//
// - the free memory of the machine (MemAvailable in /proc/meminfo);
// - what the control groups of this process leave, versions 1 and 2, at every level (limit - usage +
//   reclaimable page cache);
// - the rest of RLIMIT_AS.
//
// UINT64_MAX if none of them can be read. Tests pass a `root` other than "/".
uint64_t available_memory(const std::filesystem::path& root = "/");

// The memory of this process in bytes: "VmRSS" is the resident memory now, "VmHWM" its peak. 0 if unknown.
uint64_t process_memory(const std::string& key);

}  // namespace dtopp::device
