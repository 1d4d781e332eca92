// Cases that the stand-in for cuDNN tells apart by the batch size, and its engines.
#pragma once

constexpr int kNondeterministicEngine = 20;  // and 21
constexpr int kDeterministicEngine = 76;
constexpr int kOtherDeterministicEngine = 30;
constexpr int kBrokenEngine = 50;  // deterministic, but no plan of it can be made
constexpr int kPlainEngine = 40;  // the only one without tensor cores

constexpr int kUsual = 1;                       // 20, 76, 30
constexpr int kOnlyNondeterministic = 101;      // 20, 21
constexpr int kDeterministicCannotBeMade = 102; // 20, 50
constexpr int kSecondDeterministicWorks = 103;  // 20, 50, 76
constexpr int kFirstIsDeterministic = 104;      // 76, 20
constexpr int kHasPlainEngine = 105;            // 20, 76, 40
