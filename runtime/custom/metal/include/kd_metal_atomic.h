// Metal's atomics (Metal Shading Language Specification 6.15), on every 1- to 8-byte type that arrays may hold.
//
// Metal itself has them on 32-bit types (and a few on 64 bits) with relaxed order; a stronger order is a fence on
// both sides.
#pragma once

#include <kd_metal_simd.h>

namespace metal {

template <typename T>
struct atomic {
  T value;
};
template <typename T>
using _atomic = atomic<T>;
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_bool = atomic<bool>;
using atomic_long = atomic<long>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

namespace detail {

template <typename T>
inline T* plain(volatile atomic<T>* object) {
  return const_cast<T*>(&object->value);
}
inline void order(memory_order wanted) {
  if (wanted != memory_order_relaxed) ::__threadfence();
}
template <typename T>
constexpr bool has_word = is_integer<T> && !same<T, bool> && sizeof(T) >= 4;
// The type that CUDA's functions take for an integer of this size and sign.
template <typename T>
using Native = typename choose<
    sizeof(T) == 8, typename choose<is_signed<T>, long long, unsigned long long>::type,
    typename choose<is_signed<T>, int, unsigned int>::type>::type;
template <typename T>
using NativeUnsigned = typename choose<sizeof(T) == 8, unsigned long long, unsigned int>::type;

}  // namespace detail

template <typename T>
inline T atomic_fetch_add_explicit(
    volatile atomic<T>* object, detail::identity_t<T> operand, memory_order wanted = memory_order_relaxed) {
  detail::order(wanted);
  T old;
  if constexpr (detail::same<T, float> || detail::same<T, double>) {
    old = ::atomicAdd(detail::plain(object), operand);
  } else if constexpr (detail::has_word<T>) {
    using W = detail::NativeUnsigned<T>;
    old = T(::atomicAdd(reinterpret_cast<W*>(detail::plain(object)), W(operand)));
  } else {
    old = kd::atomic_update(detail::plain(object), [=](T x) { return T(x + operand); });
  }
  detail::order(wanted);
  return old;
}

template <typename T>
inline T atomic_fetch_sub_explicit(
    volatile atomic<T>* object, detail::identity_t<T> operand, memory_order wanted = memory_order_relaxed) {
  return atomic_fetch_add_explicit(object, T(-operand), wanted);
}

#define KD_FETCH(name, native, call)                                                             \
  template <typename T>                                                                          \
  inline T atomic_fetch_##name##_explicit(                                                       \
      volatile atomic<T>* object, detail::identity_t<T> operand,                                 \
      memory_order wanted = memory_order_relaxed) {                                              \
    detail::order(wanted);                                                                       \
    T old;                                                                                       \
    if constexpr (detail::has_word<T>) {                                                         \
      using W = detail::Native<T>;                                                               \
      old = T(::native(reinterpret_cast<W*>(detail::plain(object)), W(operand)));                \
    } else {                                                                                     \
      old = kd::atomic_update(detail::plain(object), [=](T x) { return T(call); });              \
    }                                                                                            \
    detail::order(wanted);                                                                       \
    return old;                                                                                  \
  }
KD_FETCH(max, atomicMax, metal::max(x, operand))
KD_FETCH(min, atomicMin, metal::min(x, operand))
#undef KD_FETCH
#define KD_FETCH(name, native, op)                                                               \
  template <typename T>                                                                          \
  inline T atomic_fetch_##name##_explicit(                                                       \
      volatile atomic<T>* object, detail::identity_t<T> operand,                                 \
      memory_order wanted = memory_order_relaxed) {                                              \
    detail::order(wanted);                                                                       \
    T old;                                                                                       \
    if constexpr (detail::has_word<T>) {                                                         \
      using W = detail::NativeUnsigned<T>;                                                       \
      old = T(::native(reinterpret_cast<W*>(detail::plain(object)), W(operand)));                \
    } else {                                                                                     \
      old = kd::atomic_update(detail::plain(object), [=](T x) { return T(x op operand); });      \
    }                                                                                            \
    detail::order(wanted);                                                                       \
    return old;                                                                                  \
  }
KD_FETCH(and, atomicAnd, &)
KD_FETCH(or, atomicOr, |)
KD_FETCH(xor, atomicXor, ^)
#undef KD_FETCH

template <typename T>
inline T atomic_exchange_explicit(
    volatile atomic<T>* object, detail::identity_t<T> desired, memory_order wanted = memory_order_relaxed) {
  detail::order(wanted);
  T old;
  if constexpr (sizeof(T) >= 4) {
    using W = typename kd::Word<sizeof(T)>::type;
    old = kd::bit_cast<T>(::atomicExch(reinterpret_cast<W*>(detail::plain(object)), kd::bit_cast<W>(desired)));
  } else {
    old = kd::atomic_update(detail::plain(object), [=](T) { return desired; });
  }
  detail::order(wanted);
  return old;
}

template <typename T>
inline void atomic_store_explicit(
    volatile atomic<T>* object, detail::identity_t<T> desired, memory_order wanted = memory_order_relaxed) {
  using W = detail::Unsigned<T>;
  detail::order(wanted);
  *reinterpret_cast<volatile W*>(object) = kd::bit_cast<W>(desired);
  detail::order(wanted);
}

template <typename T>
inline T atomic_load_explicit(const volatile atomic<T>* object, memory_order wanted = memory_order_relaxed) {
  using W = detail::Unsigned<T>;
  detail::order(wanted);
  T value = kd::bit_cast<T>(W(*reinterpret_cast<const volatile W*>(object)));
  detail::order(wanted);
  return value;
}

// False, with what is there in *expected, if the object's bits differ from *expected's.
template <typename T>
inline bool atomic_compare_exchange_weak_explicit(
    volatile atomic<T>* object,
    T* expected,
    detail::identity_t<T> desired,
    memory_order success = memory_order_relaxed,
    memory_order failure = memory_order_relaxed) {
  memory_order wanted = success > failure ? success : failure;
  detail::order(wanted);
  T before = *expected, found;
  if constexpr (sizeof(T) >= 4) {
    using W = typename kd::Word<sizeof(T)>::type;
    W* word = reinterpret_cast<W*>(detail::plain(object));
    found = kd::bit_cast<T>(::atomicCAS(word, kd::bit_cast<W>(before), kd::bit_cast<W>(desired)));
  } else {
    found = kd::atomic_update(detail::plain(object), [=](T x) { return x == before ? desired : x; });
  }
  detail::order(wanted);
  *expected = found;
  if constexpr (sizeof(T) >= 4) {
    using W = typename kd::Word<sizeof(T)>::type;
    return kd::bit_cast<W>(found) == kd::bit_cast<W>(before);
  } else {
    return found == before;
  }
}

// On 64 bits Metal spells maximum and minimum without a result.
template <typename T>
inline void atomic_max_explicit(
    volatile atomic<T>* object, detail::identity_t<T> operand, memory_order wanted = memory_order_relaxed) {
  atomic_fetch_max_explicit(object, operand, wanted);
}
template <typename T>
inline void atomic_min_explicit(
    volatile atomic<T>* object, detail::identity_t<T> operand, memory_order wanted = memory_order_relaxed) {
  atomic_fetch_min_explicit(object, operand, wanted);
}

}  // namespace metal
