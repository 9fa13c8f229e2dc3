// TCP connections that carry lines of text, for a thread that waits for several of them with poll().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp {

// A socket that listens on 127.0.0.1 alone or on every interface, for the caller to close. A port of 0
// becomes the free one that was taken. std::runtime_error with the reason where there is none.
int listening_socket(uint16_t& port, bool loopback_only);

// One end of a connection. It never blocks but in connect().
class LineSocket {
 public:
  explicit LineSocket(int descriptor) : descriptor_(descriptor) {}  // of a connected socket, which it takes
  // std::runtime_error with the reason where nobody answers.
  static LineSocket connect(const std::string& host, uint16_t port);
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&&) = delete;

  int descriptor() const { return descriptor_; }
  // What the connection does not take yet goes with a later send().
  void send(const std::string& line);
  // Whether all that was sent is on its way.
  bool is_idle() const { return outgoing_.empty(); }
  // The lines that have come since the last call.
  std::vector<std::string> receive();
  // No line will come any more: the other end is closed, or its process is gone.
  bool has_ended() const { return ended_; }
  // Says that no line will follow: the other end finds the end behind the last one. Closing instead would
  // take from it what it has not read, where this end has something unread itself.
  void finish();

 private:
  int descriptor_;
  std::string incoming_, outgoing_;
  bool ended_ = false;
};

}  // namespace dtopp
