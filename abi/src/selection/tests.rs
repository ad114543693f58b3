use super::*;
use alloc::vec;

fn function(start: u64, end: u64, symbol: &str) -> Function {
    Function { start, end, symbol: symbol.into() }
}

#[test]
fn selectors_survive_their_text_and_bad_ones_are_refused() {
    for text in ["libc.so.6", "lib*", "main:sort*", ":ns::f", "main:401000..402000", "[jit]"] {
        assert_eq!(Selector::parse(text).map(|s| s.to_string()), Ok(text.into()));
    }
    let range = Selector::parse("0x10..20").expect("a range of the program");
    assert_eq!((range.module.as_str(), range.part), (MAIN, Part::Range(0x10, 0x20)));
    for text in ["", "main:", "20..10", "main:20..20", ":10..20"] {
        assert!(Selector::parse(text).is_err(), "{text}");
    }
    let rules = Rules::parse("main, lib*:f", ":g").expect("rules");
    assert_eq!((rules.only.len(), rules.skip.len()), (2, 1));
    assert_eq!(Rules::from_text(&rules.to_text()), Some(rules.clone()));
    assert_ne!(rules.key(), 0);
    assert_eq!(Rules::default().key(), 0);
    assert!(Rules::parse("main,:", "").is_err());
}

#[test]
fn skip_wins_and_no_only_is_everything() {
    let functions = [function(0x10, 0x20, "a"), function(0x20, 0x30, "b.cold")];
    let ranges = |only: &str, skip: &str, names: &[&str]| {
        Rules::parse(only, skip).expect("rules").ranges(names, &functions).pieces().to_vec()
    };
    assert_eq!(ranges("", "", &["x"]), [[0, u64::MAX]]);
    assert_eq!(ranges("main", "", &["x"]), vec![[0u64; 2]; 0]);
    assert_eq!(ranges("main", ":b", &["x", "main"]), [[0, 0x20], [0x30, u64::MAX]]);
    assert_eq!(ranges(":a,:b", "", &["x"]), [[0x10, 0x30]]);
    assert_eq!(ranges(":a", "x", &["x"]), vec![[0u64; 2]; 0]);
    assert_eq!(ranges("x:18..28", "", &["x"]), [[0x18, 0x28]]);
    assert!(Rules::parse("", "*").expect("rules").is_nothing());
    assert!(!Rules::parse("main", "lib*").expect("rules").is_nothing());
}

#[test]
fn ranges_are_sets() {
    let some = Ranges::new([[5, 9], [1, 3], [3, 4], [8, 12], [7, 7]]);
    assert_eq!(some.pieces(), [[1, 4], [5, 12]]);
    assert_eq!(some.without(&Ranges::new([[2, 6], [11, 20]])).pieces(), [[1, 2], [6, 11]]);
    assert_eq!(some.common(&Ranges::new([[2, 6]])).pieces(), [[2, 4], [5, 6]]);
    assert!(Ranges::everything().common(&Ranges::everything()).is_everything());
    let selected = Selected { base: 0x100, len: 0x40, pieces: some.pieces(), elsewhere: true };
    let inside: Vec<u64> = (0x100..0x110).filter(|&a| selected.contains(a)).collect();
    assert_eq!(inside, [1, 2, 3, 5, 6, 7, 8, 9, 10, 11].map(|a| a + 0x100));
    assert!(selected.may_contain(0xff) && selected.may_contain(0x140));
    assert!(!selected.may_contain(0x13f));
}

#[test]
fn patterns_and_paths_of_functions() {
    assert!(matches("lib*.so*", "libc.so.6") && matches("l?bc*", "libc.so.6"));
    assert!(!matches("lib", "libc") && !matches("*x", "libc") && matches("**", ""));
    let names = |symbol| names_of(symbol);
    assert_eq!(names("memcpy@@GLIBC_2.14"), ["memcpy"]);
    assert_eq!(names("sort.part.0"), ["sort.part.0", "sort"]);
    assert_eq!(names("_ZN3foo3Bar3bazEi").last().map(String::as_str), Some("foo::Bar::baz"));
    assert_eq!(names("_ZNK3foo3BarC2Ev").last().map(String::as_str), Some("foo::Bar::Bar"));
    assert_eq!(names("_Z4sortPii").last().map(String::as_str), Some("sort"));
    let rust = names("_ZN4core3fmt5write17h0123456789abcdefE");
    assert_eq!(rust.last().map(String::as_str), Some("core::fmt::write"));
    assert_eq!(names("_ZN3fooI1TE3barEv").len(), 1);
}
