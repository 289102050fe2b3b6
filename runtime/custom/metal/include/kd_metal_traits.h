// Metal's <metal_type_traits>, as far as kernels ask for it, and <metal_array>.
#pragma once

#include <kd_metal_math.h>

namespace metal {

template <typename T, T V>
struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return V; }
  constexpr T operator()() const { return V; }
};
template <bool V>
using bool_constant = integral_constant<bool, V>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <typename T>
using type_identity_t = detail::identity_t<T>;
template <bool C, typename T = void>
using enable_if = detail::enable_if<C, T>;
template <bool C, typename T = void>
using enable_if_t = detail::enable_if_t<C, T>;
template <bool C, typename A, typename B>
using conditional = detail::choose<C, A, B>;
template <bool C, typename A, typename B>
using conditional_t = typename detail::choose<C, A, B>::type;
template <typename...>
using void_t = void;

template <typename T>
struct remove_reference : detail::identity<T> {};
template <typename T>
struct remove_reference<T&> : detail::identity<T> {};
template <typename T>
struct remove_reference<T&&> : detail::identity<T> {};
template <typename T>
struct remove_const : detail::identity<T> {};
template <typename T>
struct remove_const<const T> : detail::identity<T> {};
template <typename T>
struct remove_volatile : detail::identity<T> {};
template <typename T>
struct remove_volatile<volatile T> : detail::identity<T> {};
template <typename T>
struct remove_pointer : detail::identity<T> {};
template <typename T>
struct remove_pointer<T*> : detail::identity<T> {};
template <typename T>
using remove_reference_t = typename remove_reference<T>::type;
template <typename T>
using remove_const_t = typename remove_const<T>::type;
template <typename T>
using remove_volatile_t = typename remove_volatile<T>::type;
template <typename T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <typename T>
struct remove_cv : remove_const<remove_volatile_t<T>> {};
template <typename T>
using remove_cv_t = typename remove_cv<T>::type;
template <typename T>
using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;

template <typename T>
struct make_unsigned : detail::identity<detail::Unsigned<T>> {};
template <typename T>
struct make_signed {
  using type = typename detail::choose<
      sizeof(T) == 1, signed char,
      typename detail::choose<
          sizeof(T) == 2, short, typename detail::choose<sizeof(T) == 4, int, long>::type>::type>::type;
};
template <typename T>
using make_unsigned_t = typename make_unsigned<T>::type;
template <typename T>
using make_signed_t = typename make_signed<T>::type;

// A question about a type: `name<T>::value`, `name<T>{}` and `name_v<T>`; const and volatile do not matter.
#define KD_TRAIT(name, answer)                  \
  template <typename Q>                         \
  constexpr bool name##_v = [] {                \
    using T = remove_cv_t<Q>;                   \
    return answer;                              \
  }();                                          \
  template <typename Q>                         \
  struct name : bool_constant<name##_v<Q>> {};
KD_TRAIT(is_void, (detail::same<T, void>))
KD_TRAIT(is_integral, detail::is_integer<T>)
KD_TRAIT(is_floating_point, detail::is_floating<T>)
KD_TRAIT(is_arithmetic, detail::is_integer<T> || detail::is_floating<T>)
KD_TRAIT(is_scalar, detail::is_integer<T> || detail::is_floating<T>)
KD_TRAIT(is_vector, detail::is_vector<T>)
KD_TRAIT(is_signed, detail::is_floating<T> || (detail::is_integer<T> && T(-1) < T(0)))
KD_TRAIT(is_unsigned, detail::is_integer<T> && !(T(-1) < T(0)))
KD_TRAIT(is_pointer, (!detail::same<T, remove_pointer_t<T>>))
KD_TRAIT(is_enum, __is_enum(T))
#undef KD_TRAIT
template <typename T>
constexpr bool is_const_v = !detail::same<T, remove_const_t<T>>;
template <typename T>
struct is_const : bool_constant<is_const_v<T>> {};
template <typename A, typename B>
constexpr bool is_same_v = detail::same<A, B>;
template <typename A, typename B>
struct is_same : bool_constant<detail::same<A, B>> {};
template <typename A, typename B>
constexpr bool is_convertible_v = __is_convertible_to(A, B);
template <typename A, typename B>
struct is_convertible : bool_constant<is_convertible_v<A, B>> {};

template <typename T>
constexpr remove_reference_t<T>&& move(T&& value) {
  return static_cast<remove_reference_t<T>&&>(value);
}
template <typename T>
inline void swap(T& a, T& b) {
  T old = a;
  a = b;
  b = old;
}

// N elements by value (Metal Shading Language Specification 2.12).
template <typename T, size_t N>
struct array {
  T values[N];

  constexpr T& operator[](size_t i) { return values[i]; }
  constexpr const T& operator[](size_t i) const { return values[i]; }
  constexpr size_t size() const { return N; }
  constexpr bool empty() const { return false; }
  constexpr T* data() { return values; }
  constexpr const T* data() const { return values; }
  constexpr T* begin() { return values; }
  constexpr T* end() { return values + N; }
  constexpr const T* begin() const { return values; }
  constexpr const T* end() const { return values + N; }
  constexpr T& front() { return values[0]; }
  constexpr T& back() { return values[N - 1]; }
  void fill(const T& value) {
    for (size_t i = 0; i < N; ++i) values[i] = value;
  }
};

}  // namespace metal
