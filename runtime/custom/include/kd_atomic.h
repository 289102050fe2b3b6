// Read-modify-write of any trivially copyable type of 1, 2, 4 or 8 bytes, by compare-and-swap.
#pragma once

namespace kd {

template <int Bytes>
struct Word;
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = unsigned long long;
};

// The bits of one type as another of the same size.
template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type and its kin need types of one size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Replaces *address by f(*address) and returns the old value. f may run several times.
template <typename T, typename F>
inline T atomic_update(T* address, F f) {
  using W = typename Word<sizeof(T) == 1 ? 2 : sizeof(T)>::type;
  // A byte is updated in the 16 bits around it; its neighbour is written back as it was found.
  unsigned long long place = reinterpret_cast<unsigned long long>(address);
  W* word = reinterpret_cast<W*>(sizeof(T) == 1 ? place & ~1ull : place);
  int shift = sizeof(T) == 1 ? int(place & 1) * 8 : 0;
  W seen = *reinterpret_cast<volatile W*>(word);
  while (true) {
    W fresh = seen;
    T old, wanted;
    if constexpr (sizeof(T) == 1) {
      old = bit_cast<T>((unsigned char)(seen >> shift));
      wanted = f(old);
      fresh = W((seen & ~(0xff << shift)) | (bit_cast<unsigned char>(wanted) << shift));
    } else {
      old = bit_cast<T>(seen);
      wanted = f(old);
      fresh = bit_cast<W>(wanted);
    }
    W found = ::atomicCAS(word, seen, fresh);
    if (found == seen) return old;
    seen = found;
  }
}

}  // namespace kd
