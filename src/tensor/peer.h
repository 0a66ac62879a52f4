// torch.compile, where it is at work in the same process.
#pragma once

#include "tensor/ref.h"

namespace framejit::tensor {

// While alive, torch.compile leaves the frames of this thread alone, also where one of its functions called us.
class PeerAside {
 public:
  PeerAside();
  ~PeerAside();
  PeerAside(const PeerAside&) = delete;

 private:
  Ref callback_;  // What the peer does with them otherwise.
};

bool IsPeers(void* function);  // Is it of torch's library, where torch.compile's frame hook is?

}  // namespace framejit::tensor
