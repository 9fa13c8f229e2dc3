// dtopp/report/page/ as the build found it.
#pragma once

#include <string_view>

namespace dtopp {

extern const std::string_view kPageScript;  // *.js, one after another
extern const std::string_view kPageStyle;   // report.css

}  // namespace dtopp
