// What Hugging Face's tokenizer does, written down for the tests of millrace/data/text: the real Rust library through
// its node binding. In an empty folder outside the repository:
//
//   npm install tokenizers@0.23.2
//   node REPOSITORY/tools/wordpiece_golden.mjs ranges > REPOSITORY/millrace/data/text/unicode_ranges.h
//   node REPOSITORY/tools/wordpiece_golden.mjs vocab  > REPOSITORY/tests/data/text/vocab.txt
//   node REPOSITORY/tools/wordpiece_golden.mjs golden > REPOSITORY/tests/data/text/wordpiece_golden.json
//
// then clang-format -i unicode_ranges.h. `random COUNT SEED` prints as many random strings in the format of the golden
// file, for a comparison that is too large to keep. The files in the repository were made with tokenizers 0.23.2.
import {existsSync, readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import path from 'node:path';
import {fileURLToPath} from 'node:url';

const hf = createRequire(path.join(process.cwd(), 'package.json'))('tokenizers');
const here = path.dirname(fileURLToPath(import.meta.url));
const vocabFile = path.join(here, '../tests/data/text/vocab.txt');
const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'];

const everyChar = function*() {
  for (let c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c > 0xDFFF) yield [c, String.fromCodePoint(c)];
  }
};
const only = (options) => hf.bertNormalizer(
    {cleanText: false, handleChineseChars: false, stripAccents: false, lowercase: false, ...options});

// ---- ranges: what the library takes each character for ----

function printRanges() {
  const clean = only({cleanText: true}), strip = only({stripAccents: true}), nfd = hf.nfdNormalizer();
  const pre = hf.bertPreTokenizer();
  const tables = {Dropped: [], Punctuation: [], Marks: [], OrderedNoMarks: []};
  const add = (name, c) => {
    const last = tables[name].at(-1);
    if (last && last[1] === c - 1) last[1] = c;
    else tables[name].push([c, c]);
  };
  for (const [c, s] of everyChar()) {
    if (clean.normalizeString(`a${s}b`) === 'ab') add('Dropped', c);
    if (pre.preTokenizeString(`a${s}b`).length === 3) add('Punctuation', c);
    if (strip.normalizeString(`a${s}b`) === 'ab') add('Marks', c);
    // It moves behind U+0334, whose combining class is 1: it has a class of its own.
    else if (nfd.normalizeString(s) === s && nfd.normalizeString(`a${s}\u0334`) === `a\u0334${s}`) add('OrderedNoMarks', c);
  }
  const hex = (c) => '0x' + c.toString(16).toUpperCase();
  const print = (name, comment) => console.log(
      `\n// ${comment}\nconstexpr CharRange k${name}[] = {${tables[name].map((r) => `{${r.map(hex).join(', ')}}`).join(', ')}};`);
  console.log(`// Kinds of characters as Hugging Face's tokenizers 0.23.2 has them (categories of Unicode 8, combining classes of
// Unicode 9), ascending. Made by tools/wordpiece_golden.mjs, which asks the library about every character.
#pragma once

namespace millrace::data {

struct CharRange {
  char32_t first, last;
};`);
  print('Dropped', 'Cc, Cf, Co, U+0000 and U+FFFD, without tab and line ends.');
  print('Punctuation', 'P*, and all of ASCII that is no letter, digit, space or control character.');
  print('Marks', 'Mn.');
  print('OrderedNoMarks', 'Not Mn, but with a combining class other than 0.');
  console.log('\n}  // namespace millrace::data');
}

// ---- vocab: a small vocabulary that spells many scripts ----

const WORDS = `the a an of and in to was is for on as with by he that at from his it were are which this also be had or
has first their one its new after who they two her she been other when time during there into school more world years
only film movie good bad great not very no best story like funny dull love acting plot play work life made some while
house water river city state war king church team season game album song music band company university national
district population century street road line station train bridge island mountain sea north south east west red green
blue white black super bowl denver broncos carolina panthers nasa apollo moon earth sun star light energy force
what where why how many much did do does year name called between under over about against before
cafe naive resume uber strasse istanbul tokyo paris berlin zurich fiance facade manana jalapeno creme brulee
http https www com org net html email user mask cls sep pad unk embarrass embed run walk jump play un re pre dis non anti
привет мир москва россия γεια σου κοσμε οδος שלום עולם مرحبا العالم नमस्ते ไทย`.split(/\s+/);
const SUFFIXES = `s es ed ing er est ly ness ment tion sion able ible al ful less ous ive ize ise ism ist ity ty y en ie ry
th an on in ar or el le il ic ers ings ation ations ability play able aff aro ass bed ding house lin mas ment ski son ton
ville berg burg land ом ами ость ος ων ים ات`.split(/\s+/);

function printVocab() {
  const tokens = new Set([...SPECIAL, ...Array.from({length: 10}, (_, i) => `[unused${i}]`)]);
  const range = (first, last) => Array.from({length: last - first + 1}, (_, i) => String.fromCodePoint(first + i));
  for (const c of range(0x21, 0x7E)) tokens.add(c);  // capitals too: the same file serves cased tokenization
  // Letters that occur in words, so also as continuations.
  const letters = [
    ...'0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ', ...'ßæøłđıœəéèüöäñçÀÉÖÜÅåαß',
    ...range(0x3B1, 0x3C9), ...range(0x430, 0x44F), ...range(0x5D0, 0x5EA), ...range(0x621, 0x63A), ...range(0x641, 0x64A),
    ...range(0x905, 0x90A), ...range(0x915, 0x928), ...range(0x92A, 0x939), ...'ािीोौः', ...range(0xE01, 0xE2E), ...'ะาำเแโใไๆ',
    ...range(0x1100, 0x1112), ...range(0x1161, 0x1175), ...range(0x11A8, 0x11C2), ...range(0x3042, 0x305F), ...'はひふまみむやゆよらりるれろわをん',
    ...range(0x30A2, 0x30BF), ...'ハヒフマミムヤユヨラリルレロワヲンー', ...'ᄀ가한국어안녕하세요', ...'ﬁﬂＡＢＣａｂｃ', ...'²³½Ⅷⅷ', ...'ա', ...'აბგ', ...'አበ',
    '\u{1F600}', '\u{1F468}', '\u{1F469}', '\u{1F467}', '\u{1F44D}', '\u{1F3FD}', '❤', '\u{1F1E9}', '\u{1F1EA}',
    '\u0301', '\u0308', '\uFE0F', '\u0307', '\u302E', '\u302F', '\u{1D400}', '\u{10428}', 'ꭰ',
  ];
  for (const c of letters) tokens.add(c).add('##' + c);
  for (const c of '東京日本中国人大学山田語文字一二三龍麗\u{20000}\u{2A6D6}豈更\u8C48\u66F4€£¥¢±×÷≤≥∞∑√∂≠™®©°…–—‘’“”«»¿¡·、。「」！？，§¶†‡•₹→←') tokens.add(c);
  for (const w of WORDS) tokens.add(w);
  for (const w of WORDS.slice(0, 60)) tokens.add(w[0].toUpperCase() + w.slice(1));
  for (const s of SUFFIXES) tokens.add('##' + s);
  // Pairs of letters: most words are spelt with more than one length of piece.
  for (const a of 'abcdefghijklmnoprstuvwy') for (const b of 'aeiourstnlmdchgy') tokens.add('##' + a + b);
  for (const a of 'bcdfghlmnprstw') for (const b of 'aeiourhl') tokens.add(a + b);
  for (const a of 'bcdfglmnprst') for (const b of 'aeiou') for (const c of 'nrstlmdc') tokens.add(a + b + c).add('##' + a + b + c);
  process.stdout.write([...tokens].join('\n') + '\n');
}

// ---- golden: tokens, ids and offsets ----

const STRINGS = [
  '', ' ', '\t\n\r', 'the', 'The Denver Broncos', 'unplayable', 'embarrassment', 'walking, jumping; playing!', "don't can't",
  'state-of-the-art (2016)', 'x'.repeat(99), 'x'.repeat(100), 'x'.repeat(101), 'the ' + 'a'.repeat(100) + ' ' + 'a'.repeat(101) + ' end',
  'é'.repeat(100), 'e\u0301'.repeat(60), '한'.repeat(34), 'Café', 'Cafe\u0301', 'café crème brûlée, naïve résumé', 'cafe\u0301 cre\u0300me bru\u0302le\u0301e',
  'Ångström \u212Bngstro\u0308m', 'q\u0323\u0307 q\u0307\u0323', 'Z\u0351\u036B\u0343algo t\u0334e\u0335x\u0336t', '\u0301abc', 'a \u0301 b', 'abc\u0301',
  'İstanbul ISTANBUL ıstanbul', 'I\u0307stanbul', 'Straße STRASSE ẞ', 'ΟΔΟΣ οδός Οδός', 'ΣΑΣ', 'Γειά σου Κόσμε;', '\u037Eabc\u0387d\u1FEFe', 'Привет, мир!', 'Ёлка ёлка Й й',
  '한국어 안녕하세요', '\u1112\u1161\u11ABguk', '가각갂', '東京は日本', '中国人 and 日本語', 'abc東def', '\u{20000}\u{2A6D6}x\u{2B820}', '豈更\u{2F800}', 'ひらがな カタカナー がぎぐ', 'ｶﾞ ＡＢＣ ａｂｃ １２３',
  'مَرْحَبًا بِالعَالَم', 'مرحبا العالم', 'שָׁלוֹם עוֹלָם', 'नमस्ते दुनिया', 'क्षत्रिय हिंदी', 'ภาษาไทย ง่าย', 'நன்றி', 'አበ აბგ',
  '\u{1F600}', '\u{1F468}\u200D\u{1F469}\u200D\u{1F467}', '❤\uFE0F ❤ \u2764\uFE0E', '\u{1F44D}\u{1F3FD} ok', '\u{1F1E9}\u{1F1EA}', 'good\u{1F600}movie', '1\uFE0F\u20E3',
  'a\u0000b', 'tab\there\nnew\rline\u000Bvt\u000Cff', '\u0001\u0002\u001F\u007F\u0080\u0085x\u009F', 'no\u00A0break\u2003em\u3000ideographic\u1680ogham', 'zero\u200Bwidth\u200Cnon\u200Djoiner\uFEFFbom',
  'soft\u00ADhyphen', 'rtl\u202Eoverride\u202C\u2066iso\u2069', 'line\u2028sep\u2029para', 'bad\uFFFDchar \uFFFD', '\uE000private\u{F0000}use', 'un\u0378assigned', '\uFFFEnon\uFFFFchar',
  '[MASK]', 'the [MASK] house', 'a[MASK]b', '[mask] [Mask]', '[CLS] the [SEP] a [PAD] [UNK]', '[[MASK]]', '[MASK', '[MA SK]', '[UNK][UNK]', 'e[MASK]\u0301', '[unused1]', '[MA\u0000SK]', '[MAS\u0301K]',
  'https://www.example.com/a?b=c&d=%20#x', 'user@email.org', '$5 €10 £3 ¥200 ¢ ₹', '1+1=2 ± × ÷ ≤ ≥ ∞ ∑ √ ∂ ≠', '^~`|<>', '5°C ™ ® ©', '“quoted” ‘single’ «guillemets» – — …', '¿Qué? ¡Sí!', '、。「」！？，', 'ﬁne ﬂow ﬀ ﬃ',
  '²³½ Ⅷ ⅷ', '\u{1D400}\u{1D5D4}', '\u{10400}\u{10428}', 'Ꭰꭰᏸ', 'Ǆ ǅ ǆ', 'Ω \u2126 K \u212A', 'ſ ſt ẛ', '\u1E9B\u0323', 'Ḍ̇ ḍ̇', 'æÆ øØ łŁ đĐ œŒ', 'ʼn ŉ', 'a\u302E\u302F\u0301b', 'a\u302F\u0327\u302Eb', '\u0F71\u0F72\u0F73', '\u{1D15E}',
  '##ing un##able', '#', '_under_score_', 'a.b.c', 'U.S.A.', '3.14 1,000', "l'été d’été", 'xylophonequartz', 'ζzζ', 'the\u{10FFFF}the', '\u{E0061}tag', '\u2E43\u{1E95E}new punctuation', '\u{1E944}\u{1E94A}adlam', 'Ა Ꞌ Ɤ ꟋꟌ \u1C89',
  '  leading and trailing  ', 'The Super Bowl 50 was a NASA game: Carolina Panthers vs. Denver Broncos.', 'ÀÉÖÜ Åå', 'e\u0301\u0301\u0301', '\u200D', '\u0300', 'ab\u200D', '\u200Dab',
];

const CONTEXT = 'The Denver Broncos (AFC) won Super Bowl 50, 24–10, in the city of Zürich; 東京 and 한국어 were there too. ' +
    'A café was on the street between the river and the church — it had naïve music \u{1F600} and a band called “Apollo”. '.repeat(3);
const PAIRS = [
  ['the movie', 'a great story'], ['the movie was very good', 'no'], ['no', 'the movie was very good'], ['', 'the'], ['the', ''], ['', ''],
  ['a great story', 'the movie was very good and the plot was dull'], ['the movie was very good and the plot was dull', 'a great story'], ['a b c d e f', 'g h i j k l'],
];
const WINDOWS = [
  ['Who won Super Bowl 50?', 40, 10], ['Who won Super Bowl 50?', 64, 20], ['Where?', 384, 128], ['What was the band called?', 24, 0], ['What was the band called?', 33, 22],
];

function makeTokenizer(lowerCase) {
  const lines = readFileSync(vocabFile, 'utf8').split('\n').slice(0, -1);
  const vocab = Object.fromEntries(lines.map((token, id) => [token, id]));
  const tokenizer = new hf.Tokenizer(hf.WordPiece.init(vocab, {unkToken: '[UNK]', continuingSubwordPrefix: '##', maxInputCharsPerWord: 100}));
  tokenizer.setNormalizer(hf.bertNormalizer({cleanText: true, handleChineseChars: true, stripAccents: lowerCase, lowercase: lowerCase}));
  tokenizer.setPreTokenizer(hf.bertPreTokenizer());
  tokenizer.setPostProcessor(hf.bertProcessing(['[SEP]', vocab['[SEP]']], ['[CLS]', vocab['[CLS]']]));
  tokenizer.addSpecialTokens(SPECIAL);
  return tokenizer;
}

// The library counts characters, the tests bytes of UTF-8.
function byteOffsets(text, offsets) {
  const at = [0];
  for (const c of text) at.push(at.at(-1) + Buffer.byteLength(c));
  return offsets.map((range) => range.map((n) => at[n]));
}

async function plain(tokenizer, text) {
  const encoding = await tokenizer.encode(text, null, {addSpecialTokens: false});
  return {ids: encoding.getIds(), tokens: encoding.getTokens(), offsets: byteOffsets(text, encoding.getOffsets())};
}

async function texts(strings) {
  const uncased = makeTokenizer(true), cased = makeTokenizer(false);
  const result = [];
  for (const text of strings) result.push({text, uncased: await plain(uncased, text), cased: await plain(cased, text)});
  return result;
}

// FNV-1a (32 bits) over what becomes of every character between two letters.
function hashOfEveryChar(lowerCase) {
  const normalizer = only({cleanText: true, handleChineseChars: true, stripAccents: lowerCase, lowercase: lowerCase});
  let hash = 0x811C9DC5;
  for (const [, s] of everyChar()) {
    for (const byte of Buffer.from(normalizer.normalizeString(`a${s}b`))) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  }
  return hash;
}

async function printGolden() {
  const tokenizer = makeTokenizer(true);
  const pairs = [], singles = [], windows = [];
  for (const [a, b] of PAIRS) {
    for (const max of [3, 4, 7, 8, 12, 20]) {
      tokenizer.setTruncation(max, {strategy: hf.TruncationStrategy.LongestFirst});
      tokenizer.setPadding({maxLength: max, padId: 0, padToken: '[PAD]'});
      const encoding = await tokenizer.encode(a, b);
      pairs.push({a, b, max, ids: encoding.getIds(), segments: encoding.getTypeIds(), mask: encoding.getAttentionMask()});
      const single = await tokenizer.encode(a);
      singles.push({text: a, max, ids: single.getIds(), segments: single.getTypeIds(), mask: single.getAttentionMask()});
    }
  }
  tokenizer.disablePadding();
  for (const [question, max, stride] of WINDOWS) {
    // Tokenized before it is cut: where a truncation is set, encode() of 0.23 reads no more of a text than the first
    // max_length tokens and so loses the windows after them.
    tokenizer.disableTruncation();
    const a = await tokenizer.encode(question, null, {addSpecialTokens: false});
    const b = await tokenizer.encode(CONTEXT, null, {addSpecialTokens: false});
    tokenizer.setTruncation(max, {strategy: hf.TruncationStrategy.OnlySecond, stride});
    const first = tokenizer.postProcess(a, b, true);
    const list = [first, ...first.getOverflowing()];
    windows.push({question, max, stride, windows: list.map((e) => e.getIds())});
  }
  const line = (list) => '[\n' + list.map((x) => JSON.stringify(x)).join(',\n') + '\n]';
  console.log(`{"library": "tokenizers 0.23.2",\n"every_char": {"uncased": ${hashOfEveryChar(true)}, "cased": ${
      hashOfEveryChar(false)}},\n"context": ${JSON.stringify(CONTEXT)},\n"texts": ${
      line(await texts(STRINGS))},\n"singles": ${line(singles)},\n"pairs": ${line(pairs)},\n"windows": ${line(windows)}}`);
}

async function printRandom(count, seed) {
  let state = BigInt(seed) * 2654435761n + 1n;
  const random = (n) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) & 0xFFFFFFFFFFFFFFFFn;
    return Number((state >> 33n) % BigInt(n));
  };
  const pool = STRINGS.join(' ') + WORDS.join(' ');
  const chars = [...pool];
  const strings = [];
  for (let i = 0; i < count; ++i) {
    let text = '';
    for (let n = random(30); n > 0; --n) {
      const kind = random(10);
      if (kind < 6) text += chars[random(chars.length)];
      else if (kind < 7) text += ' ';
      else if (kind < 8) text += String.fromCodePoint(0x300 + random(0x3000));
      else if (kind < 9) text += WORDS[random(WORDS.length)];
      else {
        const c = random(0x20000);
        if (c < 0xD800 || c > 0xDFFF) text += String.fromCodePoint(c);
      }
    }
    strings.push(text);
  }
  for (const x of await texts(strings)) console.log(JSON.stringify(x));
}

const [mode, ...args] = process.argv.slice(2);
if (mode === 'ranges') printRanges();
else if (mode === 'vocab') printVocab();
else if (mode === 'golden' && existsSync(vocabFile)) await printGolden();
else if (mode === 'random') await printRandom(Number(args[0]), Number(args[1]));
else console.error('usage: wordpiece_golden.mjs ranges | vocab | golden | random COUNT SEED');
