// A c10d store in the form that transports use.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rendezvous.hpp"

namespace cpudist {

class C10dStore final : public KeyValueStore {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  // c10d stores drop empty values, so each value begins with a mark.
  void set(const std::string& key, const std::string& value) override {
    const auto marked = "=" + value;
    store_->set(key, std::vector<uint8_t>(marked.begin(), marked.end()));
  }

  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    const auto bytes = store_->get(key);
    return std::string(bytes.begin() + 1, bytes.end());
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace cpudist
