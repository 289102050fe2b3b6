// Metal's scalar types: half and bfloat as classes whose arithmetic rounds once, and the traits of all scalars.
//
// A sum, difference, product or quotient of two 16-bit floats done in float and rounded back is the correctly rounded
// one (24 >= 2 * 11 + 2 bits), so no 16-bit instructions are needed.
#pragma once

#include <kd_atomic.h>

namespace metal {

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using ptrdiff_t = long;
using intptr_t = long;
using uintptr_t = unsigned long;

namespace detail {

template <bool Condition, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  using type = T;
};
template <bool Condition, typename T = void>
using enable_if_t = typename enable_if<Condition, T>::type;

template <typename A, typename B>
constexpr bool same = false;
template <typename A>
constexpr bool same<A, A> = true;

template <bool Condition, typename A, typename B>
struct choose {
  using type = A;
};
template <typename A, typename B>
struct choose<false, A, B> {
  using type = B;
};

template <typename T>
struct identity {
  using type = T;
};
template <typename T>
using identity_t = typename identity<T>::type;

template <typename T>
T make();  // a value of T in unevaluated operands

template <typename T>
constexpr bool is_integer = false;
#define KD_INTEGER(T) \
  template <>         \
  inline constexpr bool is_integer<T> = true;
KD_INTEGER(bool)
KD_INTEGER(char)
KD_INTEGER(signed char)
KD_INTEGER(unsigned char)
KD_INTEGER(short)
KD_INTEGER(unsigned short)
KD_INTEGER(int)
KD_INTEGER(unsigned int)
KD_INTEGER(long)
KD_INTEGER(unsigned long)
KD_INTEGER(long long)
KD_INTEGER(unsigned long long)
#undef KD_INTEGER

template <typename T>
constexpr bool is_builtin = is_integer<T> || same<T, float> || same<T, double> || __is_enum(T);

// float to the bits of IEEE binary16, round to nearest even: only for constants, where no instruction can run.
constexpr ushort fold_half(float x) {
  uint bits = __builtin_bit_cast(uint, x);
  uint sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return ushort(sign | 0x7fff);
  if (magnitude >= 0x477ff000u) return ushort(sign | 0x7c00);  // rounds to 65536 or more
  if (magnitude < 0x33000001u) return ushort(sign);            // at most half of the smallest subnormal
  int exponent = int(magnitude >> 23) - 127;
  uint significand = (magnitude & 0x7fffffu) | 0x800000u;
  int drop = exponent < -14 ? 13 + (-14 - exponent) : 13;
  uint kept = significand >> drop, rest = significand & ((1u << drop) - 1), halfway = 1u << (drop - 1);
  kept += rest > halfway || (rest == halfway && (kept & 1));
  return ushort(sign | (exponent < -14 ? kept : kept + (uint(exponent + 14) << 10)));
}

constexpr float fold_widen_half(ushort h) {
  uint sign = uint(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {
    float value = float(fraction) * 5.9604644775390625e-8f;  // 2**-24
    return sign ? -value : value;
  }
  return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | fraction << 13);
}

constexpr ushort fold_bfloat(float x) {
  uint bits = __builtin_bit_cast(uint, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return ushort((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline ushort narrow_half(float x) {
  ushort h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
inline float widen_half(ushort h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
inline ushort narrow_bfloat(float x) {
  ushort b;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
  return b;
}

struct HalfFormat {
  static constexpr ushort narrow(float x) {
    if (__builtin_is_constant_evaluated()) return fold_half(x);
    return narrow_half(x);
  }
  static constexpr float widen(ushort h) {
    if (__builtin_is_constant_evaluated()) return fold_widen_half(h);
    return widen_half(h);
  }
};

struct BfloatFormat {
  static constexpr ushort narrow(float x) {
    if (__builtin_is_constant_evaluated()) return fold_bfloat(x);
    return narrow_bfloat(x);
  }
  static constexpr float widen(ushort b) { return __builtin_bit_cast(float, uint(b) << 16); }
};

}  // namespace detail

// A 16-bit float. Converts to float by itself; arithmetic with an integer stays in the type, with a float gives float.
template <typename Format>
struct Small {
  ushort bits;

  Small() = default;
  template <typename V, typename = detail::enable_if_t<detail::is_builtin<V>>>
  constexpr Small(V value) : bits(Format::narrow(float(value))) {}
  template <typename G, typename = detail::enable_if_t<!detail::same<Format, G>>>
  constexpr explicit Small(Small<G> value) : bits(Format::narrow(float(value))) {}
  constexpr operator float() const { return Format::widen(bits); }

  template <typename V>
  constexpr Small& operator+=(V b) {
    return *this = Small(float(*this + b));
  }
  template <typename V>
  constexpr Small& operator-=(V b) {
    return *this = Small(float(*this - b));
  }
  template <typename V>
  constexpr Small& operator*=(V b) {
    return *this = Small(float(*this * b));
  }
  template <typename V>
  constexpr Small& operator/=(V b) {
    return *this = Small(float(*this / b));
  }
  constexpr Small& operator++() { return *this += 1; }
  constexpr Small& operator--() { return *this -= 1; }
  constexpr Small operator++(int) {
    Small old = *this;
    ++*this;
    return old;
  }
  constexpr Small operator--(int) {
    Small old = *this;
    --*this;
    return old;
  }
};

using half = Small<detail::HalfFormat>;
using bfloat = Small<detail::BfloatFormat>;
using float16_t = half;
using bfloat16_t = bfloat;

namespace detail {

template <typename T>
constexpr bool is_small = false;
template <typename F>
constexpr bool is_small<Small<F>> = true;
template <typename T>
constexpr bool is_floating = is_small<T> || same<T, float> || same<T, double>;
template <typename T>
constexpr bool is_scalar = is_builtin<T> || is_small<T>;

// What a 16-bit float and a builtin scalar meet in.
template <typename F, typename V>
using Met = typename choose<same<V, float> || same<V, double>, V, Small<F>>::type;

}  // namespace detail

#define KD_ARITHMETIC(op)                                                             \
  template <typename F>                                                               \
  constexpr Small<F> operator op(Small<F> a, Small<F> b) {                            \
    return Small<F>(float(a) op float(b));                                            \
  }                                                                                   \
  template <typename F, typename V, typename = detail::enable_if_t<detail::is_builtin<V>>> \
  constexpr detail::Met<F, V> operator op(Small<F> a, V b) {                          \
    using C = detail::Met<F, V>;                                                      \
    if constexpr (detail::is_small<C>) return a op C(b);                              \
    else return C(float(a)) op b;                                                     \
  }                                                                                   \
  template <typename F, typename V, typename = detail::enable_if_t<detail::is_builtin<V>>> \
  constexpr detail::Met<F, V> operator op(V a, Small<F> b) {                          \
    using C = detail::Met<F, V>;                                                      \
    if constexpr (detail::is_small<C>) return C(a) op b;                              \
    else return a op C(float(b));                                                     \
  }                                                                                   \
  template <typename F, typename G, typename = detail::enable_if_t<!detail::same<F, G>>> \
  constexpr float operator op(Small<F> a, Small<G> b) {                               \
    return float(a) op float(b);                                                      \
  }
KD_ARITHMETIC(+)
KD_ARITHMETIC(-)
KD_ARITHMETIC(*)
KD_ARITHMETIC(/)
#undef KD_ARITHMETIC

#define KD_COMPARE(op)                                                                \
  template <typename F, typename G>                                                   \
  constexpr bool operator op(Small<F> a, Small<G> b) {                                \
    return float(a) op float(b);                                                      \
  }                                                                                   \
  template <typename F, typename V, typename = detail::enable_if_t<detail::is_builtin<V>>> \
  constexpr bool operator op(Small<F> a, V b) {                                       \
    return float(a) op b;                                                             \
  }                                                                                   \
  template <typename F, typename V, typename = detail::enable_if_t<detail::is_builtin<V>>> \
  constexpr bool operator op(V a, Small<F> b) {                                       \
    return a op float(b);                                                             \
  }
KD_COMPARE(==)
KD_COMPARE(!=)
KD_COMPARE(<)
KD_COMPARE(<=)
KD_COMPARE(>)
KD_COMPARE(>=)
#undef KD_COMPARE

template <typename F>
constexpr Small<F> operator-(Small<F> a) {
  a.bits ^= 0x8000;
  return a;
}
template <typename F>
constexpr Small<F> operator+(Small<F> a) {
  return a;
}

}  // namespace metal
