#include "dtopp/base/progress.h"

#include <algorithm>
#include <stdexcept>

#include <pty.h>
#include <unistd.h>

#include "tests/base/scratch_directory.h"

namespace dtopp {
namespace {

TEST(ProgressLine, shows_share_rate_and_time_left) {
  EXPECT_EQ(progress_line("tokenize", "tok", 1'200'000, 2'400'000, 4.0),
            "tokenize   50%  1.20M/2.40M tok  300k tok/s  4.0s left");
}

TEST(ProgressLine, does_not_claim_the_end_before_it) {
  EXPECT_NE(progress_line("x", "B", 999'999, 1'000'000, 1.0).find(" 99%"), std::string::npos);
  EXPECT_EQ(progress_line("x", "B", 1'000'000, 1'000'000, 2.0), "x  100%  1.0 MB/1.0 MB  500 kB/s  2.0s");
}

TEST(ProgressLine, without_a_total_shows_what_was_done) {
  EXPECT_EQ(progress_line("read", "docs", 500, 0, 2.0), "read  500 docs  250 docs/s  2.0s");
}

TEST(ProgressLine, leaves_out_of_the_rate_what_was_done_before) {
  EXPECT_EQ(progress_line("x", "docs", 900, 1000, 10.0, 800), "x   90%  900/1.00k docs  10 docs/s  10s left");
}

TEST(ProgressBar, writes_one_plain_line_where_there_is_no_terminal) {
  const ScratchDirectory directory;
  const auto path = directory / "log";
  std::FILE* file = std::fopen(path.c_str(), "w+");
  ASSERT_NE(file, nullptr);
  {
    ProgressBar bar("prepare", "docs", 1000, file);
    for (uint64_t i = 1; i <= 1000; ++i) bar.update(i);
    bar.finish();
  }
  char text[256] = {};
  std::rewind(file);
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const std::string log(text, size);
  EXPECT_TRUE(log.starts_with("prepare  100%  1.00k/1.00k docs  ")) << log;
  EXPECT_EQ(log.find('\n'), log.size() - 1) << log;
  EXPECT_EQ(log.find('\r'), std::string::npos) << log;
}

// A pseudo-terminal of `columns` characters.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    int end = -1;
    winsize size{};
    size.ws_col = columns;
    if (::openpty(&screen_, &end, nullptr, nullptr, &size) != 0) throw std::runtime_error("no terminal");
    stream_ = ::fdopen(end, "w");
  }
  ~Terminal() { ::close(screen_); }
  std::FILE* stream() const { return stream_; }
  // Closes the stream, because a read before may miss what the kernel still passes on.
  std::string text() {
    std::fclose(stream_);
    std::string text;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(screen_, bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<size_t>(count));
    return text;
  }

 private:
  int screen_ = -1;
  std::FILE* stream_ = nullptr;
};

TEST(StatusLine, fits_into_one_line_of_the_terminal_and_makes_room_for_a_message) {
  Terminal terminal(20);
  {
    const ConsoleLog log(terminal.stream());
    log.status("step 1/2 | " + std::string(40, 'x'));
    log.status("step 2/2");
    log.message("saved");
    log.status("step 3/2");
  }
  EXPECT_EQ(terminal.text(), "\rstep 1/2 | xxxxxxxx\rstep 2/2" + std::string(11, ' ') + "\r" +
                                 std::string(8, ' ') + "\rdtopp: saved\r\n\rstep 3/2\r\n");
}

}  // namespace
}  // namespace dtopp
