// Implements `dtopp report`: shows runs and studies on one HTML page.
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "dtopp/base/errors.h"
#include "dtopp/report/live_report.h"
#include "dtopp/report/page.h"

namespace dtopp::cli {
namespace {

struct ReportOptions {
  std::vector<fs::path> paths;
  std::string output = "report.html";
  uint16_t port = 0;
};

void serve(const ReportOptions& options) {
  stop_on_signals();
  report::LiveReport report(options.paths, planned_memory);
  report::ReportServer server(options.port);
  std::printf("%s\n", server.address().c_str());
  flush_standard_output();
  server.serve(report, stop_token());
}

void write(const ReportOptions& options) {
  const report::ReportInput input = report::read_report_input(options.paths, planned_memory);
  for (const report::ReportRun& run : input.runs)
    for (const std::string& line : run.evaluations.skipped)
      std::fprintf(stderr, "dtopp: warning: %s\n", line.c_str());
  report::write_report(input, options.output);
  std::printf("%s\n", options.output.c_str());
}

}  // namespace

void add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand("report", "Show runs and studies on one HTML page");
  command->add_option("runs", options->paths, "folders of runs or studies");
  CLI::Option* output =
      command->add_option("--output", options->output, "HTML file to write")->capture_default_str();
  CLI::Option* serve_option = add_checked(*command, "--serve", options->port,
                                          "serve the page on this port of 127.0.0.1 (default: any free "
                                          "port) and update it while the runs train",
                                          between(0, 65535))
                                  ->type_name("TEXT")
                                  ->expected(0, 1)
                                  ->excludes(output);
  command->callback([options, serve_option] {
    if (options->paths.empty()) throw UsageError("report: no run is given; name a run or a study");
    for (fs::path& path : options->paths) path = without_trailing_slash(path);
    serve_option->count() > 0 ? serve(*options) : write(*options);
  });
}

}  // namespace dtopp::cli
