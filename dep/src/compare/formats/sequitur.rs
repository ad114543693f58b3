//! Sequitur: a context-free grammar of a sequence, in linear time (Nevill-Manning and Witten, 1997).
//!
//! Two things hold of the grammar behind each word. *Digram uniqueness*: no two neighbours occur twice, but where
//! the occurrences overlap. *Rule utility*: each rule but the first is used at least twice. A digram that occurs
//! a second time becomes a rule, and a rule that is used once becomes part of its user.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// What a symbol that stands for a rule has set.
const RULE: u32 = 1 << 31;
/// The symbol of a node that is not in use.
const FREE: u32 = u32::MAX;

/// A neighbour list: node 0 is the guard of the first rule, and each other rule has a guard, too. Behind the last
/// symbol of a rule comes its guard, and behind that its first one.
pub struct Sequitur {
    nodes: Vec<Node>,
    free: Vec<u32>,
    rules: Vec<Rule>,
    free_rules: Vec<u32>,
    /// The occurrence of each digram that counts.
    digrams: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    /// Nodes whose digram is to be looked up: it is new, or what it overlapped with is gone. A node that has been freed
    /// or used again meanwhile does no harm: any digram may be looked up at any time.
    pending: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Node {
    symbol: u32,
    next: u32,
    previous: u32,
    /// The node is the guard of the rule that `symbol` names.
    guard: bool,
}

#[derive(Clone, Copy)]
struct Rule {
    guard: u32,
    uses: u32,
}

/// One multiplication: keys are two symbols.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u64(&mut self, key: u64) {
        let mixed = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }
}

/// The rules; the first one is the sequence.
#[derive(Debug, PartialEq)]
pub struct Grammar(pub Vec<Vec<Symbol>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// A word of the sequence.
    Word(u32),
    /// All that rule number so and so stands for.
    Rule(u32),
}

impl Sequitur {
    /// Of a sequence of words below 2^31.
    pub fn of(words: impl Iterator<Item = u32>) -> Grammar {
        let mut all = Sequitur {
            nodes: Vec::new(),
            free: Vec::new(),
            rules: Vec::new(),
            free_rules: Vec::new(),
            digrams: HashMap::default(),
            pending: Vec::new(),
        };
        all.rule();
        words.for_each(|word| all.append(word));
        all.grammar()
    }

    fn append(&mut self, word: u32) {
        assert!(word < RULE, "a word of more than 31 bits");
        let guard = self.rules[0].guard;
        let last = self.node(guard).previous;
        let new = self.allocate(word, false);
        self.link(last, new);
        self.link(new, guard);
        self.pending.push(last);
        while let Some(node) = self.pending.pop() {
            self.check(node);
        }
    }

    fn node(&self, node: u32) -> Node {
        self.nodes[node as usize]
    }

    fn allocate(&mut self, symbol: u32, guard: bool) -> u32 {
        let node = Node { symbol, next: 0, previous: 0, guard };
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    /// A rule without symbols, which nobody uses.
    fn rule(&mut self) -> u32 {
        let number = match self.free_rules.pop() {
            Some(number) => number,
            None => {
                self.rules.push(Rule { guard: 0, uses: 0 });
                (self.rules.len() - 1) as u32
            }
        };
        let guard = self.allocate(number, true);
        self.link(guard, guard);
        self.rules[number as usize] = Rule { guard, uses: 0 };
        number
    }

    fn link(&mut self, left: u32, right: u32) {
        self.nodes[left as usize].next = right;
        self.nodes[right as usize].previous = left;
    }

    /// The node's symbol and the next one, if both are of a rule.
    fn digram(&self, node: u32) -> Option<u64> {
        let (left, right) = (self.node(node), self.node(self.node(node).next));
        let is_one = left.symbol != FREE && !left.guard && !right.guard;
        is_one.then_some(u64::from(left.symbol) << 32 | u64::from(right.symbol))
    }

    /// The node's digram is about to go. One like it that overlaps with it counts from now on.
    fn forget(&mut self, node: u32) {
        let Some(digram) = self.digram(node) else { return };
        if self.digrams.get(&digram) == Some(&node) {
            self.digrams.remove(&digram);
            if digram >> 32 == digram & 0xffff_ffff {
                let Node { next, previous, .. } = self.node(node);
                self.pending.extend([previous, next]);
            }
        }
    }

    fn check(&mut self, node: u32) {
        let Some(digram) = self.digram(node) else { return };
        let other = *self.digrams.entry(digram).or_insert(node);
        if other == node || self.node(node).next == other || self.node(other).next == node {
            return;
        }
        let rule = match (self.whole_rule(other), self.whole_rule(node)) {
            (Some(rule), _) => {
                self.substitute(node, rule);
                rule
            }
            (None, Some(rule)) => {
                self.substitute(other, rule);
                self.digrams.insert(digram, node);
                rule
            }
            (None, None) => self.new_rule(node, other, digram),
        };
        // What the digram has of rules may be used by this rule alone now.
        let guard = self.rules[rule as usize].guard;
        let Node { next: first, previous: last, .. } = self.node(guard);
        self.expand_if_used_once(first);
        if last != first {
            self.expand_if_used_once(last);
        }
    }

    /// The rule that is this digram and nothing else.
    fn whole_rule(&self, node: u32) -> Option<u32> {
        let before = self.node(self.node(node).previous);
        let behind = self.node(self.node(self.node(node).next).next);
        (before.guard && behind.guard && before.symbol != 0).then_some(before.symbol)
    }

    fn new_rule(&mut self, node: u32, other: u32, digram: u64) -> u32 {
        let rule = self.rule();
        let guard = self.rules[rule as usize].guard;
        let symbols = [self.node(node).symbol, self.node(self.node(node).next).symbol];
        let [first, last] = symbols.map(|symbol| self.use_of(symbol));
        self.link(guard, first);
        self.link(first, last);
        self.link(last, guard);
        self.substitute(other, rule);
        self.substitute(node, rule);
        self.digrams.insert(digram, first);
        rule
    }

    /// A new node.
    fn use_of(&mut self, symbol: u32) -> u32 {
        if symbol & RULE != 0 {
            self.rules[(symbol & !RULE) as usize].uses += 1;
        }
        self.allocate(symbol, false)
    }

    /// The rule in place of two nodes.
    fn substitute(&mut self, node: u32, rule: u32) {
        let second = self.node(node).next;
        let (before, behind) = (self.node(node).previous, self.node(second).next);
        [before, node, second].into_iter().for_each(|node| self.forget(node));
        for gone in [node, second] {
            let symbol = self.node(gone).symbol;
            if symbol & RULE != 0 {
                self.rules[(symbol & !RULE) as usize].uses -= 1;
            }
            self.release(gone);
        }
        let new = self.use_of(RULE | rule);
        self.link(before, new);
        self.link(new, behind);
        self.pending.extend([new, before]);
    }

    fn release(&mut self, node: u32) {
        self.nodes[node as usize] = Node { symbol: FREE, next: node, previous: node, guard: false };
        self.free.push(node);
    }

    /// The symbols of a rule in place of its only use.
    fn expand_if_used_once(&mut self, node: u32) {
        let Node { symbol, next: behind, previous: before, guard } = self.node(node);
        if guard || symbol & RULE == 0 || self.rules[(symbol & !RULE) as usize].uses != 1 {
            return;
        }
        let rule = symbol & !RULE;
        self.forget(before);
        self.forget(node);
        let guard = self.rules[rule as usize].guard;
        let Node { next: first, previous: last, .. } = self.node(guard);
        self.link(before, first);
        self.link(last, behind);
        self.release(node);
        self.release(guard);
        self.rules[rule as usize].uses = 0;
        self.free_rules.push(rule);
        self.pending.extend([last, before]);
    }

    /// The rules with numbers without gaps.
    fn grammar(&self) -> Grammar {
        let mut is_free = vec![false; self.rules.len()];
        self.free_rules.iter().for_each(|&rule| is_free[rule as usize] = true);
        let mut count = 0;
        let numbers: Vec<u32> = is_free
            .iter()
            .map(|free| {
                count += u32::from(!free);
                count - u32::from(!free)
            })
            .collect();
        let symbol = |node: Node| match node.symbol & RULE {
            0 => Symbol::Word(node.symbol),
            _ => Symbol::Rule(numbers[(node.symbol & !RULE) as usize]),
        };
        let body = |rule: &Rule| {
            let nodes = std::iter::successors(Some(self.node(rule.guard).next), |&node| {
                Some(self.node(node).next)
            });
            nodes.map(|node| self.node(node)).take_while(|node| !node.guard).map(symbol).collect()
        };
        let rules = self.rules.iter().zip(&is_free).filter(|(_, free)| !**free);
        Grammar(rules.map(|(rule, _)| body(rule)).collect())
    }
}

impl Grammar {
    /// The sequence again.
    pub fn expand(&self) -> impl Iterator<Item = u32> + '_ {
        let mut open = vec![self.0[0].iter()];
        std::iter::from_fn(move || loop {
            match open.last_mut()?.next() {
                Some(Symbol::Word(word)) => return Some(*word),
                Some(Symbol::Rule(rule)) => open.push(self.0[*rule as usize].iter()),
                None => {
                    open.pop();
                }
            }
        })
    }

    /// Symbols on the right side of all rules.
    pub fn symbols(&self) -> u64 {
        self.0.iter().map(|rule| rule.len() as u64).sum()
    }

    /// Bytes of the grammar if each symbol, and the end of each rule, is a number of as many bits as all of them
    /// need. The `words` that occur have to be listed beside it.
    pub fn bytes(&self, words: u64) -> u64 {
        let rules = self.0.len() as u64;
        // The first rule is used by none, and its number says that a rule ends.
        let codes = (words + rules).max(2);
        let bits = u64::from(u64::BITS - (codes - 1).leading_zeros());
        ((self.symbols() + rules) * bits).div_ceil(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The grammar of the words, which is checked for everything that it promises.
    fn checked(words: &[u32]) -> Grammar {
        let grammar = Sequitur::of(words.iter().copied());
        assert!(grammar.expand().eq(words.iter().copied()), "{words:?}: {grammar:?}");
        let mut digrams: HashMap<[Symbol; 2], Vec<(usize, usize)>> = HashMap::new();
        let mut uses = vec![0; grammar.0.len()];
        for (number, rule) in grammar.0.iter().enumerate() {
            for (at, digram) in rule.windows(2).enumerate() {
                digrams.entry([digram[0], digram[1]]).or_default().push((number, at));
            }
            for symbol in rule {
                if let Symbol::Rule(rule) = symbol {
                    uses[*rule as usize] += 1;
                }
            }
        }
        for (digram, places) in &digrams {
            // All of them overlap: one run of one symbol, of at most three.
            let (rule, first) = places[0];
            let is_one = places.iter().all(|&(r, at)| r == rule && at <= first + 1);
            assert!(is_one, "{words:?}: {digram:?} at {places:?} of {grammar:?}");
        }
        assert_eq!(uses[0], 0, "{words:?}");
        assert!(uses[1..].iter().all(|&uses| uses >= 2), "{words:?}: {grammar:?}");
        grammar
    }

    fn letters(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn shown(text: &str) -> String {
        let symbol = |symbol: &Symbol| match symbol {
            Symbol::Word(word) => char::from(*word as u8).to_string(),
            Symbol::Rule(rule) => rule.to_string(),
        };
        let grammar = checked(&letters(text));
        let rules = grammar.0.iter().map(|rule| rule.iter().map(symbol).collect::<String>());
        rules.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn examples_of_the_paper_that_describes_it() {
        assert_eq!(shown("abcdbc"), "a1d1 bc");
        // A rule that is used once is gone: 1 was bc.
        assert_eq!(shown("abcdbcabcd"), "212 bc a1d");
        assert_eq!(shown("abcdbcabcdbc"), "22 bc a1d1");
        assert_eq!(shown("aaa"), "aaa");
        assert_eq!(shown("aaaa"), "11 aa");
        assert_eq!(shown(""), "");
        assert_eq!(shown("a"), "a");
    }

    /// xorshift64: the same words in every run.
    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) % below
        }
    }

    #[test]
    fn all_short_sequences() {
        for words in 2..=3_u32 {
            for length in 0..=if words == 2 { 14 } else { 9 } {
                for number in 0..words.pow(length) {
                    let digit = |at| number / words.pow(at) % words;
                    checked(&(0..length).map(digit).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn random_sequences() {
        for seed in 1..300 {
            let mut random = random(seed);
            let (length, words) = (random(3000), 1 + random(20));
            checked(&(0..length).map(|_| random(words) as u32).collect::<Vec<_>>());
        }
    }

    /// Pieces of what was there before, again and again: what a trace of loops is.
    #[test]
    fn repetitive_sequences() {
        for seed in 1..300 {
            let mut random = random(seed);
            let mut words: Vec<u32> = (0..4).collect();
            while words.len() < 3000 {
                let from = random(words.len() as u64) as usize;
                let to = from + random((words.len() - from).min(200) as u64 + 1) as usize;
                for _ in 0..1 + random(4) {
                    words.extend_from_within(from..to);
                }
                if random(3) == 0 {
                    words.push(random(6) as u32);
                }
            }
            checked(&words);
        }
    }

    #[test]
    fn a_repetition_costs_its_logarithm() {
        let grammar = checked(&[7, 8, 9].repeat(1 << 14));
        assert!(grammar.symbols() < 60, "{}", grammar.symbols());
        assert!(grammar.bytes(3) < 70, "{}", grammar.bytes(3));
    }

    #[test]
    fn bytes_are_those_of_numbers_of_equal_width() {
        let word = |n| Symbol::Word(n);
        // 5 symbols and 2 ends, of 3 words and 2 rules: 7 numbers of 3 bits.
        let grammar =
            Grammar(vec![vec![Symbol::Rule(1), word(2), Symbol::Rule(1)], vec![word(0), word(1)]]);
        assert_eq!((grammar.symbols(), grammar.bytes(3)), (5, 3));
        assert_eq!(Grammar(vec![vec![]]).bytes(0), 1);
    }
}
